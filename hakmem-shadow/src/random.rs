//! Random numbers that are the same everywhere.

/// xorshift64*. The seed must not be 0.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n
    }

    /// The bytes of random program `n` of those that belong to `seed`.
    pub fn program(seed: u64, n: u64) -> Vec<u8> {
        let mut random = Random((seed << 32 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut bytes = vec![0; if cfg!(miri) { 60 } else { 40 + random.below(400) as usize }];
        random.fill(&mut bytes);
        bytes
    }

    /// As many bytes as there is room for.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        // The upper half: the lower bits of this generator are weak.
        bytes.iter_mut().for_each(|byte| *byte = (self.draw() >> 32) as u8);
    }
}

/// The number in the environment's variable `name`, or `default`.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}
