//! The machine an experiment runs on, and how busy others keep it.

use std::fs;
use std::time::Duration;

use nix::sched::sched_getaffinity;
use nix::unistd::Pid;

use super::group;
use super::model::Machine;

/// Describes this machine. Takes a moment, to see how busy it is.
pub fn describe() -> Machine {
    let busy_before = Usage::now().map_or(0.0, |before| {
        std::thread::sleep(Duration::from_millis(500));
        Usage::now().map_or(0.0, |now| now.since(&before).busy_share())
    });
    Machine {
        processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_string()),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        memory: kibibytes("MemTotal").unwrap_or(0),
        kernel: read("/proc/sys/kernel/osrelease"),
        system: system(),
        libc: libc_version(),
        huge_pages: huge_pages(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
        virtualisation: virtualisation(),
        busy_before,
    }
}

/// Bytes that programs could still get without swapping, and without being killed for them.
pub fn available_memory() -> u64 {
    kibibytes("MemAvailable").unwrap_or(u64::MAX).min(group::room())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

/// The value after the first "name :" or "name:" in a file of the kernel's.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

fn kibibytes(name: &str) -> Option<u64> {
    let value = field("/proc/meminfo", name)?;
    Some(value.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

fn system() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "unknown".to_string(), |name| name.trim_matches('"').to_string())
}

/// The C library of this command, such as "glibc 2.36".
#[cfg(target_env = "gnu")]
pub fn libc_version() -> String {
    // SAFETY: returns a static C string.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    format!("glibc {}", version.to_string_lossy())
}

/// The C library of this command.
#[cfg(not(target_env = "gnu"))]
pub fn libc_version() -> String {
    if cfg!(target_env = "musl") { "musl" } else { "not glibc" }.to_string()
}

/// The word in brackets.
fn huge_pages(text: &str) -> String {
    text.split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("unknown", |(word, _)| word)
        .to_string()
}

/// The hypervisor's name as far as the machine tells it.
fn virtualisation() -> String {
    let flags = field("/proc/cpuinfo", "flags").unwrap_or_default();
    if !flags.split(' ').any(|flag| flag == "hypervisor") {
        return "none seen".to_string();
    }
    let named = ["/sys/class/dmi/id/sys_vendor", "/sys/hypervisor/type"].map(read);
    named.into_iter().find(|name| !name.is_empty()).unwrap_or_else(|| "a hypervisor, unnamed".to_string())
}

/// Processor time of the processors that this process may use, in the kernel's ticks. What others have to
/// themselves neither disturbs nor is to hide what does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    busy: u64,
    idle: u64,
    stolen: u64,
}

impl Usage {
    /// Since boot.
    pub fn now() -> Option<Self> {
        let set = sched_getaffinity(Pid::from_raw(0)).ok();
        let usable = |cpu| set.is_none_or(|set| set.is_set(cpu).unwrap_or(false));
        Self::parse(&fs::read_to_string("/proc/stat").ok()?, usable)
    }

    /// The sum of the lines of those processors; of all, where none of these is told, as in containers that
    /// number theirs anew.
    fn parse(text: &str, usable: impl Fn(usize) -> bool) -> Option<Self> {
        let one = |line: &str| {
            let (cpu, fields) = line.strip_prefix("cpu")?.split_once(' ')?;
            let fields: Vec<u64> = fields.split_whitespace().map_while(|field| field.parse().ok()).collect();
            // user nice system idle iowait irq softirq steal
            let get = |i: usize| fields.get(i).copied().unwrap_or(0);
            let busy = get(0) + get(1) + get(2) + get(5) + get(6);
            Some((cpu.parse().ok(), Self { busy, idle: get(3) + get(4), stolen: get(7) }))
        };
        let lines = || text.lines().filter_map(one);
        let used = lines().filter(|(cpu, _)| cpu.is_some_and(&usable)).map(|(_, one)| one);
        let used = used.reduce(|all, one| Self {
            busy: all.busy + one.busy,
            idle: all.idle + one.idle,
            stolen: all.stolen + one.stolen,
        });
        used.or_else(|| lines().find(|(cpu, _)| cpu.is_none()).map(|(_, all)| all))
    }

    /// What was used after `before`.
    pub fn since(self, before: &Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(before.busy),
            idle: self.idle.saturating_sub(before.idle),
            stolen: self.stolen.saturating_sub(before.stolen),
        }
    }

    fn total(self) -> f64 {
        (self.busy + self.idle + self.stolen).max(1) as f64
    }

    /// The part of all processors' time that was not idle, 0 to 1.
    pub fn busy_share(self) -> f64 {
        (self.busy + self.stolen) as f64 / self.total()
    }

    /// The part that the hypervisor took, 0 to 1.
    pub fn stolen_share(self) -> f64 {
        self.stolen as f64 / self.total()
    }

    /// The part that went to others than those who used `own` seconds, 0 to 1.
    pub fn foreign_share(self, own: f64) -> f64 {
        // The kernel reports these in hundredths of a second on every architecture (USER_HZ).
        let others = (self.busy + self.stolen) as f64 - own * 100.0;
        (others / self.total()).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage() {
        // The first processor is somebody else's.
        let own = |lines: &str| {
            let text = format!("cpu  9999 0 0 9999 0 0 0 0 0 0\n{lines}\nintr 1 2\n");
            Usage::parse(&text, |cpu| cpu != 0).unwrap()
        };
        let before = own("cpu0 500 0 0 7000 0\ncpu1 60 0 50 400 50 0 0 0 0 0\ncpu2 40 0 0 400 0 0 0 0 0 0");
        let after = own("cpu0 900 0 0 9000 0\ncpu1 130 0 60 450 50 0 10 5 0 0\ncpu2 50 0 0 440 0 0 0 5 0 0");
        let used = after.since(&before);
        assert_eq!(used, Usage { busy: 100, idle: 90, stolen: 10 });
        assert!((used.busy_share() - 0.55).abs() < 1e-9);
        assert!((used.stolen_share() - 0.05).abs() < 1e-9);
        assert!((used.foreign_share(0.5) - 0.30).abs() < 1e-9);
        assert_eq!(used.foreign_share(10.0), 0.0);
        assert_eq!(Usage::parse("nonsense", |_| true), None);
        assert!(Usage::now().unwrap().total() > 1.0);
    }

    #[test]
    fn this_machine() {
        let machine = describe();
        assert!(machine.memory > 0 && machine.processors > 0 && !machine.kernel.is_empty());
        assert!((0.0..=1.0).contains(&machine.busy_before));
        assert!(available_memory() <= machine.memory);
    }

    #[test]
    fn chosen_word() {
        assert_eq!(huge_pages("always [madvise] never"), "madvise");
        assert_eq!(huge_pages(""), "unknown");
    }
}
