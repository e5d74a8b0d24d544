//! What `doctor` and `bench` ask the machine: its processor, its memory, and how long its disk takes to keep a promise.

use crate::output::broken;
use crate::stopwatch::Stopwatch;
use rustix::fs::statfs;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;
use tidings_base::Error;

/// How often a disk is synced to learn its median; few enough that a slow disk answers within seconds.
const SYNCS: usize = 64;
/// What is written before each sync: one page, as a small batch of the log would be.
const SYNC_BYTES: usize = 4096;

/// What a measurement ran on.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_mib: u64,
    pub system: String,
    pub file_system: String,
    pub fsync_p50_us: u64,
    pub tidings: &'static str,
    pub build: &'static str,
}

/// Looks at the machine and at the disk that holds `dir`.
pub fn machine(dir: &Path) -> Result<Machine, Error> {
    let uname = rustix::system::uname();
    Ok(Machine {
        processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_mib: field("/proc/meminfo", "MemTotal")
            .and_then(|kib| kib.split_whitespace().next()?.parse::<u64>().ok())
            .map_or(0, |kib| kib / 1024),
        system: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
        file_system: file_system(dir)?.to_owned(),
        fsync_p50_us: fsync_p50(dir)?.as_micros() as u64,
        tidings: env!("CARGO_PKG_VERSION"),
        build: if cfg!(debug_assertions) { "unoptimised" } else { "optimised" },
    })
}

/// The kind of file system under `dir`.
pub fn file_system(dir: &Path) -> Result<&'static str, Error> {
    let stat = statfs(dir).map_err(|error| broken(format_args!("cannot look at {}", dir.display()), error))?;
    // The magic numbers of statfs(2).
    Ok(match stat.f_type as u32 {
        0x0102_1994 => "tmpfs",
        0x8584_58f6 => "ramfs",
        0x0000_ef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x2fc1_2fc1 => "zfs",
        0x794c_7630 => "overlayfs",
        0x0000_6969 => "nfs",
        _ => "other",
    })
}

/// Whether what is "synced" there lives in memory all the same.
pub fn forgets_at_power_loss(file_system: &str) -> bool {
    matches!(file_system, "tmpfs" | "ramfs")
}

/// The median time of a small write and its sync, on a file of its own that is removed again.
pub fn fsync_p50(dir: &Path) -> Result<Duration, Error> {
    let path = dir.join(format!(".fsync-probe-{}", std::process::id()));
    let measured = fsync_times(&path);
    // The probe is worthless afterwards, and its own failure to go away is not what was asked about.
    let _ = fs::remove_file(&path);
    let mut times = measured.map_err(|error| broken(format_args!("cannot write to {}", dir.display()), error))?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn fsync_times(path: &Path) -> std::io::Result<Vec<Duration>> {
    let mut file = File::create_new(path)?;
    // The log writes into space that exists already: so does the probe.
    file.write_all(&vec![0; SYNC_BYTES])?;
    file.sync_all()?;
    let page = vec![b't'; SYNC_BYTES];
    (0..SYNCS)
        .map(|_| {
            let watch = Stopwatch::start();
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&page)?;
            file.sync_data()?;
            Ok(watch.elapsed())
        })
        .collect()
}

/// How many bytes may still be written under `dir` by this user.
pub fn free_bytes(dir: &Path) -> Result<u64, Error> {
    let stat = statfs(dir).map_err(|error| broken(format_args!("cannot look at {}", dir.display()), error))?;
    Ok(stat.f_bavail as u64 * stat.f_bsize as u64)
}

/// The resident memory of a process in bytes, if it runs and may be looked at.
pub fn resident(pid: u32) -> Option<u64> {
    let kib: u64 = field(&format!("/proc/{pid}/status"), "VmRSS")?.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// The processor time that a process has used so far, if it runs and may be looked at.
pub fn processor_time(pid: u32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; utime and stime are the 14th and 15th field, in hundredths (USER_HZ).
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut hundredths = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis((hundredths()? + hundredths()?) * 10))
}

/// Raises the number of files this process may open as far as the system lets it; what it may open now.
pub fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let now = if setrlimit(Resource::Nofile, raised).is_ok() { raised } else { limit };
    now.current.unwrap_or(u64::MAX)
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
