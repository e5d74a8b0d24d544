//! The kinds of faults.

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Hosts fall into two sides that cannot talk.
    Partition,
    /// One direction between two hosts is dead.
    OneWay,
    /// Two hosts cannot talk to each other, all others can.
    Partial,
    /// One replica is cut off from the others, with or without the clients.
    Isolation,
    /// Drops, duplicates and delays for a while.
    Storm,
    /// A process sleeps for 0.5 to 3 leases.
    Pause,
    /// A process is killed; its machine lives.
    Kill,
    /// A machine loses power.
    PowerLoss,
    /// All replicas lose power at once.
    PowerCut,
    /// A machine loses power again and again.
    CrashLoop,
    /// A disk is slow for a while.
    SlowDisk,
    /// A disk is full for a while.
    FullDisk,
    /// A write fails.
    WriteError,
    /// A sync fails.
    SyncError,
    /// A read fails at the next start.
    ReadError,
    /// A bit on a disk changes.
    BitFlip,
    /// A file on a disk is cut short.
    TruncatedFile,
    /// A clock changes its rate within the bound.
    ClockRate,
    /// A wall clock jumps.
    WallJump,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 19] = [
        Kind::Partition,
        Kind::OneWay,
        Kind::Partial,
        Kind::Isolation,
        Kind::Storm,
        Kind::Pause,
        Kind::Kill,
        Kind::PowerLoss,
        Kind::PowerCut,
        Kind::CrashLoop,
        Kind::SlowDisk,
        Kind::FullDisk,
        Kind::WriteError,
        Kind::SyncError,
        Kind::ReadError,
        Kind::BitFlip,
        Kind::TruncatedFile,
        Kind::ClockRate,
        Kind::WallJump,
    ];

    /// Those of disks, which meet nothing where there is none.
    pub const DISKS: [Kind; 7] = [
        Kind::SlowDisk,
        Kind::FullDisk,
        Kind::WriteError,
        Kind::SyncError,
        Kind::ReadError,
        Kind::BitFlip,
        Kind::TruncatedFile,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Partition => "partition",
            Kind::OneWay => "one_way_partition",
            Kind::Partial => "partial_partition",
            Kind::Isolation => "isolation",
            Kind::Storm => "storm",
            Kind::Pause => "pause",
            Kind::Kill => "kill",
            Kind::PowerLoss => "power_loss",
            Kind::PowerCut => "power_cut",
            Kind::CrashLoop => "crash_loop",
            Kind::SlowDisk => "slow_disk",
            Kind::FullDisk => "full_disk",
            Kind::WriteError => "write_error",
            Kind::SyncError => "sync_error",
            Kind::ReadError => "read_error",
            Kind::BitFlip => "bit_flip",
            Kind::TruncatedFile => "truncated_file",
            Kind::ClockRate => "clock_rate",
            Kind::WallJump => "wall_jump",
        }
    }
}
