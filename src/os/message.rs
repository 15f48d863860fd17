//! Messages without allocation: each line is formatted on the stack and written by one system call.

use crate::os::file;
use core::fmt::{self, Write};

/// A text buffer on the stack. What does not fit is cut off.
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// An empty buffer.
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// Adds bytes, which need not be text.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let rest = self.bytes.iter_mut().skip(self.len);
        self.len += rest.zip(bytes).map(|(to, from)| *to = *from).count();
    }

    /// What is in the buffer.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Writes the text to a file descriptor and empties the buffer.
    pub(crate) fn send(&mut self, fd: i32) {
        file::write(fd, self.bytes.get(..self.len).unwrap_or_default());
        self.len = 0;
    }
}

/// Text of any length. It is handed on whenever the buffer is full.
pub(crate) struct Lines<'a> {
    put: &'a mut dyn FnMut(&[u8]),
    buffer: &'a mut [u8],
    len: usize,
}

impl<'a> Lines<'a> {
    /// No text yet. `buffer` must not be empty; `put` never gets nothing.
    pub(crate) fn new(put: &'a mut dyn FnMut(&[u8]), buffer: &'a mut [u8]) -> Self {
        Self { put, buffer, len: 0 }
    }

    /// Hands on what is in the buffer.
    pub(crate) fn flush(&mut self) {
        let text = self.buffer.get(..self.len).unwrap_or_default();
        if !text.is_empty() {
            (self.put)(text);
        }
        self.len = 0;
    }
}

impl Write for Lines<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let mut rest = s.as_bytes();
        while !rest.is_empty() {
            if self.len == self.buffer.len() {
                self.flush();
            }
            let n = rest.len().min(self.buffer.len() - self.len);
            self.buffer[self.len..self.len + n].copy_from_slice(&rest[..n]);
            self.len += n;
            rest = &rest[n..];
        }
        Ok(())
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let n = s.len().min(N - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// Bytes from outside, displayed as text: whatever is not printable ASCII becomes `?`.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &b in self.0 {
            f.write_char(if b.is_ascii_graphic() || b == b' ' { b as char } else { '?' })?;
        }
        Ok(())
    }
}

/// Prints one line to standard error.
pub(crate) fn line(args: fmt::Arguments<'_>) {
    line_to(2, args);
}

/// Prints one line to a file descriptor.
pub(crate) fn line_to(fd: i32, args: fmt::Arguments<'_>) {
    let mut text = Text::<512>::new();
    let _ = text.write_str("hakmem: ");
    let _ = text.write_fmt(args);
    text.len = text.len.min(511);
    let _ = text.write_str("\n");
    text.send(fd);
}

/// Ends the process with SIGABRT.
pub(crate) fn abort() -> ! {
    // SAFETY: `abort` may be called at any time.
    unsafe { libc::abort() }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::string::String;

    #[test]
    fn lines_longer_than_their_buffer_arrive_whole() {
        let mut text = String::new();
        let mut put = |piece: &[u8]| {
            assert!((1..=7).contains(&piece.len()));
            text += core::str::from_utf8(piece).unwrap();
        };
        let mut buffer = [0; 7];
        let mut lines = Lines::new(&mut put, &mut buffer);
        let mut expected = String::new();
        for word in ["", "a", "seventy", "more than seven", "!", "and the end"] {
            lines.write_str(word).unwrap();
            expected += word;
        }
        lines.flush();
        lines.flush();
        assert_eq!(text, expected);
    }
}
