//! Why a program was not served, as far as its file tells.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::elf::{self, Kind};
use crate::report::printable;
use crate::sys;

/// So many scripts may each be the interpreter of the one before, as in the kernel.
const SCRIPTS: u32 = 4;

/// What kept `library` out of `program`.
pub fn not_served(program: &OsStr, library: &Path) -> String {
    obvious(program, library).unwrap_or_else(|| {
        "no word came from the library in it: it made no allocation, or ended before it could, or the loader \
         refused the library"
            .into()
    })
}

/// The same where the files of both tell.
pub fn obvious(program: &OsStr, library: &Path) -> Option<String> {
    if !elf::is_hakmem(library) {
        return Some(format!("{} is not Hakmem's library", printable(library.as_os_str())));
    }
    not_preloadable(program, library)
}

/// Why the loader would not preload `library` into `program`, if the files of both tell.
pub fn not_preloadable(program: &OsStr, library: &Path) -> Option<String> {
    locate(program).as_deref().and_then(|path| obstacle(path, library, SCRIPTS))
}

/// Where the shell would find `program`.
pub fn locate(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_executable(file))
}

/// The loader that `program` names, or the interpreter of the script that it is.
#[cfg(feature = "lab")]
pub fn loader(program: &OsStr) -> Option<String> {
    dynamic(program).map(|(_, loader)| loader)
}

/// The file of `program`, or of the interpreter of the script that it is, and the loader which that names.
#[cfg(feature = "lab")]
fn dynamic(program: &OsStr) -> Option<(PathBuf, String)> {
    let mut path = locate(program)?;
    for _ in 0..=SCRIPTS {
        match elf::kind(&path) {
            Kind::Script(interpreter) => path = interpreter.into(),
            Kind::Dynamic(loader) => return Some((path, loader)),
            _ => return None,
        }
    }
    None
}

/// The file of `program`, or of its interpreter, if that defines malloc: what a program itself defines comes
/// before all libraries.
#[cfg(feature = "lab")]
pub fn defines_malloc(program: &OsStr) -> Option<PathBuf> {
    dynamic(program).map(|(path, _)| path).filter(|path| elf::defines_malloc(path) == Some(true))
}

/// Whether it is a file that may be run.
pub fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0)
}

/// The reason in the file at `path`, or in the interpreter of the script there, `depth` deep at most.
fn obstacle(path: &Path, library: &Path, depth: u32) -> Option<String> {
    let shown = printable(path.as_os_str());
    let ignored = "so the loader ignores LD_PRELOAD";
    match elf::kind(path) {
        Kind::Script(interpreter) if depth > 0 => {
            return obstacle(Path::new(&interpreter), library, depth - 1);
        }
        Kind::Static => return Some(format!("{shown} is statically linked, so no loader reads LD_PRELOAD")),
        Kind::Foreign => return Some(format!("{shown} is a program for another kind of machine")),
        Kind::Dynamic(loader) if elf::is_musls(&loader) != elf::is_for_musl(library) => {
            let library = printable(library.as_os_str());
            return Some(format!("{shown} uses another C library ({loader}) than {library}"));
        }
        _ => {}
    }
    // A set-id bit that changes nothing (root running root's program) does not stop the loader.
    let meta = std::fs::metadata(path).ok()?;
    let user = meta.mode() & libc::S_ISUID != 0 && meta.uid() != nix::unistd::getuid().as_raw();
    let group = meta.mode() & libc::S_ISGID != 0 && meta.gid() != nix::unistd::getgid().as_raw();
    if user || group {
        return Some(format!("{shown} is set-user-id or set-group-id, {ignored}"));
    }
    sys::has_capabilities(path).then(|| format!("{shown} carries file capabilities, {ignored}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_programs_as_the_shell_does() {
        assert!(is_executable(&locate(OsStr::new("sh")).unwrap()));
        assert_eq!(locate(OsStr::new("./x")), Some("./x".into()));
        assert_eq!(locate(OsStr::new("no-such-program-anywhere")), None);
    }

    #[test]
    fn an_ordinary_program_has_no_obstacle() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(obstacle(&own, &own, 4), None);
        assert_eq!(obstacle(Path::new("/does/not/exist"), &own, 4), None);
    }

    #[test]
    fn a_script_that_is_its_own_interpreter_comes_to_an_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("#!{}\n", file.path().display())).unwrap();
        assert_eq!(obstacle(file.path(), Path::new("/x"), 4), None);
    }

    #[test]
    fn programs_and_libraries_for_musl_go_together() {
        let folder = tempfile::tempdir().unwrap();
        let line = "echo 'int main(void) { return 0; }' >x.c
             gcc -shared -fPIC -o libc.so -Wl,-soname,libc.so x.c
             gcc -shared -fPIC -nostdlib -o musl.so x.c -Wl,--no-as-needed ./libc.so; gcc -shared -fPIC -o glibc.so x.c
             gcc -o program x.c; gcc -o musl x.c -Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1";
        let done = std::process::Command::new("sh").args(["-ec", line]).current_dir(folder.path()).status();
        assert!(done.unwrap().success());
        let file = |name: &str| folder.path().join(name);
        let reason = |program, library| obstacle(&file(program), &file(library), 4);
        assert_eq!((reason("program", "glibc.so"), reason("musl", "musl.so")), (None, None));
        for (program, library) in [("program", "musl.so"), ("musl", "glibc.so")] {
            let said = reason(program, library).unwrap();
            let end = format!(") than {}", file(library).display());
            assert!(said.contains("/program uses another C library (/lib") || program == "musl", "{said}");
            assert!(said.ends_with(&end), "{said}");
        }
    }

    #[cfg(feature = "lab")]
    #[test]
    fn who_defines_malloc_is_looked_up() {
        let folder = tempfile::tempdir().unwrap();
        let line = "echo 'void *malloc(unsigned long n) { return (void *)(n & 0); } int main(void) { return 0; }' >m.c
             echo '#include <stdlib.h>' >n.c; echo 'int main(void) { return malloc(1) == 0; }' >>n.c
             for s in m n; do gcc -w -shared -fPIC -o $s.so $s.c; gcc -w -O0 -fno-builtin -o $s $s.c; done
             printf '#!%s\\n' \"$PWD/m\" >script; chmod +x script";
        let done = std::process::Command::new("sh").args(["-ec", line]).current_dir(folder.path()).status();
        assert!(done.unwrap().success());
        let file = |name: &str| folder.path().join(name);
        assert_eq!(elf::defines_malloc(&file("m.so")), Some(true));
        assert_eq!(elf::defines_malloc(&file("n.so")), Some(false));
        assert_eq!(elf::defines_malloc(&file("m.c")), None);
        assert_eq!(defines_malloc(file("n").as_os_str()), None);
        assert_eq!(defines_malloc(file("m").as_os_str()), Some(file("m")));
        assert_eq!(defines_malloc(file("script").as_os_str()), Some(file("m")));
    }

    #[test]
    fn another_library_is_named() {
        let own = std::env::current_exe().unwrap();
        assert!(not_served(OsStr::new("sh"), &own).contains("is not Hakmem's library"));
    }
}
