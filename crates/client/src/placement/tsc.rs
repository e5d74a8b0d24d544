//! The time-stamp counter as a clock: quick to read, believed only within bounds.
//!
//! ```text
//!   mono = counter × rate + offset       rate: measured once; offset: set anew by a reader every 100 ms
//! ```
//! A reading counts only within [`WINDOW`] after the last comparison with boot time. Whoever reads later compares: if the two
//! disagree by more than [`TOLERANCE`], or the host was suspended since, the counter is not used again.
//!
//! What remains: a host that is suspended for the first time, on hardware that neither resets the counter nor lets it run
//! on, shows the old time for what was left of the window. Who suspends hosts uses boot time.

use super::clock::{awake, boot};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidings_base::Mono;

/// For how long the counter is believed after it was compared with boot time.
const WINDOW: Duration = Duration::from_millis(100);

/// How long the rate is measured. Reading both clocks takes well below a microsecond, so the rate is right to some 10⁻⁴.
const MEASURED: Duration = Duration::from_millis(20);

/// By how much the counter may be off after a window: a thousandth of the rate bound ρ, and what reading takes.
const TOLERANCE: Duration = Duration::from_micros(200);

/// Boot time and monotonic time drift apart only while a host is suspended; reading both takes time, too.
const NEVER_SUSPENDED: Duration = Duration::from_millis(1);

/// Bits behind the point of the rate: nanoseconds a tick as a fixed-point number.
const SHIFT: u32 = 32;

/// A calibrated counter.
#[derive(Debug)]
pub(crate) struct Tsc {
    /// Nanoseconds a tick, times 2^[`SHIFT`].
    rate: u64,
    /// [`WINDOW`] in ticks.
    window: u64,
    /// The counter at the last comparison.
    base: AtomicU64,
    /// Boot time minus what the counter says, wrapping.
    offset: AtomicU64,
    trusted: AtomicBool,
}

impl Tsc {
    /// Measures the counter; `None` where there is none that can be trusted. Takes [`MEASURED`].
    pub(crate) fn calibrate() -> Option<Tsc> {
        if !counter::is_invariant() || !kernel_uses_it() || suspended() {
            return None;
        }
        let (first, began) = pair()?;
        std::thread::sleep(MEASURED);
        let (last, ended) = pair()?;
        let (ticks, nanos) = (last.checked_sub(first)?, u64::try_from((ended - began).as_nanos()).ok()?);
        if ticks == 0 {
            return None;
        }
        let rate = u64::try_from((u128::from(nanos) << SHIFT) / u128::from(ticks)).ok().filter(|rate| *rate > 0)?;
        let window = u64::try_from((WINDOW.as_nanos() << SHIFT) / u128::from(rate)).ok()?;
        let tsc =
            Tsc { rate, window, base: AtomicU64::new(0), offset: AtomicU64::new(0), trusted: AtomicBool::new(true) };
        tsc.rebase(last, ended);
        Some(tsc)
    }

    /// Whether it is still read.
    pub(crate) fn is_trusted(&self) -> bool {
        self.trusted.load(Ordering::Relaxed)
    }

    /// The instant now.
    #[inline]
    pub(crate) fn mono(&self) -> Mono {
        // The base is loaded before the offset and stored after it: with a base comes its offset, or a later one.
        let base = self.base.load(Ordering::Acquire);
        let offset = self.offset.load(Ordering::Relaxed);
        let ticks = counter::read();
        // A counter that was reset is below the base, which wraps to far beyond the window.
        if ticks.wrapping_sub(base) < self.window {
            return Mono(self.scaled(ticks).wrapping_add(offset));
        }
        self.compare()
    }

    /// Boot time, and whether the counter still agrees with it.
    #[cold]
    fn compare(&self) -> Mono {
        if !self.is_trusted() {
            return boot();
        }
        let base = self.base.load(Ordering::Acquire);
        let offset = self.offset.load(Ordering::Relaxed);
        let Some((ticks, now)) = pair() else { return boot() };
        let said = Mono(self.scaled(ticks).wrapping_add(offset));
        let elapsed = self.elapsed(ticks, base);
        // The rate is off by a little, so the longer nobody read, the further it may be off.
        let tolerance = TOLERANCE + elapsed / 1_000;
        let agrees = ticks >= base && now.since(said) <= tolerance && said.since(now) <= tolerance;
        if agrees && !suspended() {
            self.rebase(ticks, now);
        } else {
            self.distrust();
        }
        now
    }

    /// From here on every reading is outside of the window: the base is set to where the counter will never be.
    fn distrust(&self) {
        self.trusted.store(false, Ordering::Relaxed);
        self.base.store(u64::MAX / 2, Ordering::Release);
    }

    fn rebase(&self, ticks: u64, now: Mono) {
        self.offset.store(now.0.wrapping_sub(self.scaled(ticks)), Ordering::Relaxed);
        self.base.store(ticks, Ordering::Release);
    }

    fn scaled(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.rate)) >> SHIFT) as u64
    }

    fn elapsed(&self, ticks: u64, base: u64) -> Duration {
        Duration::from_nanos(self.scaled(ticks.saturating_sub(base)))
    }
}

/// Both clocks at one instant: the boot time between two readings of the counter that lie close together. The counter is
/// the first of the two, so that what is computed from it is rather late than early, and a lease ends rather early.
fn pair() -> Option<(u64, Mono)> {
    /// More than a reading ever takes undisturbed: 20 µs at 1 GHz.
    const CLOSE: u64 = 20_000;
    /// A thread that is disturbed each time is on a machine that is too busy to calibrate on.
    const TRIES: u32 = 50;
    (0..TRIES).find_map(|_| {
        let before = counter::read();
        let now = boot();
        let after = counter::read();
        (after.wrapping_sub(before) < CLOSE).then_some((before, now))
    })
}

/// The kernel watches the counter itself, and leaves it when the processors disagree.
fn kernel_uses_it() -> bool {
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    source.is_ok_and(|source| source.trim() == "tsc")
}

/// Whether this host was ever suspended.
fn suspended() -> bool {
    let awake = awake();
    boot().since(awake) > NEVER_SUSPENDED
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::{__cpuid, __rdtscp, _mm_lfence};

    /// The leaf that tells which extended leaves there are, and the one of power management.
    const EXTENDED: u32 = 0x8000_0000;
    const POWER: u32 = 0x8000_0007;
    const FEATURES: u32 = 0x8000_0001;

    /// Runs at one rate in all states of the processor, and can be read in order.
    pub(super) fn is_invariant() -> bool {
        if __cpuid(EXTENDED).eax < POWER {
            return false;
        }
        let invariant = __cpuid(POWER).edx & (1 << 8) != 0;
        let in_order = __cpuid(FEATURES).edx & (1 << 27) != 0;
        invariant && in_order
    }

    /// Reads the counter after everything before it, and before everything after it: a deadline that was loaded before
    /// must not be compared with a time from before the load (F11).
    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn read() -> u64 {
        let mut processor = 0;
        // SAFETY: `rdtscp` reads a counter and writes the processor's number to the place given, which lives. The one
        // precondition is that the processor has the instruction: a `Tsc` exists only if `is_invariant` saw its bit,
        // and `pair` is called by nobody else. `lfence` is part of SSE2, which every x86-64 has.
        unsafe {
            let ticks = __rdtscp(&mut processor);
            _mm_lfence();
            ticks
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod counter {
    pub(super) fn is_invariant() -> bool {
        false
    }

    pub(super) fn read() -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::Clock;
    use super::*;

    /// A counter that can be trusted, if there is one. Where there is none a reason must be known, and boot time takes its
    /// place.
    fn calibrated() -> Option<Tsc> {
        // A machine may be too busy for it once.
        let found = (0..10).find_map(|_| Tsc::calibrate());
        if found.is_none() {
            assert!(!counter::is_invariant() || !kernel_uses_it() || suspended(), "it was not used, and is fit");
            let clock = Clock::fast();
            let (before, said, after) = (boot(), clock.mono(), boot());
            assert!(!clock.is_fast() && before <= said && said <= after, "{before:?} {said:?} {after:?}");
        }
        found
    }

    /// Each reading lies between two of boot time, but for the tolerance.
    #[test]
    fn it_agrees_with_boot_time_over_several_windows() {
        let Some(tsc) = calibrated() else { return };
        for _ in 0..30 {
            let before = boot();
            let said = tsc.mono();
            let after = boot();
            assert!(said + TOLERANCE >= before, "{said:?} is long before {before:?}");
            assert!(said <= after + TOLERANCE, "{said:?} is long after {after:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_counter_that_disagrees_is_not_used_again() {
        let Some(tsc) = calibrated() else { return };
        // As if the host had slept for a minute without the counter: boot time is ahead of it.
        tsc.offset.fetch_sub(60_000_000_000, Ordering::Relaxed);
        std::thread::sleep(WINDOW + Duration::from_millis(5));
        let before = boot();
        assert!(tsc.mono() >= before);
        assert!(!tsc.is_trusted());
        assert!(tsc.mono() >= before, "from here on boot time is read");
    }

    #[test]
    fn a_counter_that_was_reset_is_noticed_at_once() {
        let Some(tsc) = calibrated() else { return };
        // As if it had begun anew below the base.
        tsc.base.store(u64::MAX - 1, Ordering::Relaxed);
        let before = boot();
        assert!(tsc.mono() >= before);
        assert!(!tsc.is_trusted());
    }
}
