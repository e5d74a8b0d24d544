//! A clock for the engine that nobody sets: its deadlines are times of day, and would stand still after the clock was set back.
//!
//! What goes to other replicas with a time, handshakes, carries the true one: they compare it with theirs.

use commonware_cryptography::transcript::Transcript;
use commonware_runtime::signal::Signal;
use commonware_runtime::telemetry::metrics::{Metric, Registered};
use commonware_runtime::{
    BlobVersion, Clock, Error, Handle, Metrics, Name, Network, Resolver, Sink, SinkOf, Spawner, Storage, Stream,
    StreamOf, Supervisor,
};
use commonware_stream::Handshake;
use governor::clock::{Clock as GovernorClock, ReasonablyRealtime};
use rand_core::{CryptoRng, TryCryptoRng, TryRng};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// What says what time it is.
#[derive(Clone)]
pub struct Time(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl Time {
    /// This one.
    pub fn of(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Time {
        Time(Arc::new(now))
    }

    /// The time of day, which people and daemons set.
    pub fn of_day() -> Time {
        Time::of(SystemTime::now)
    }

    /// The time of day as it is now, and from then on what has gone by.
    pub fn steady() -> Time {
        let (day, begun) = (SystemTime::now(), Instant::now());
        Time::of(move || day + begun.elapsed())
    }

    /// What time it is.
    pub fn now(&self) -> SystemTime {
        (self.0)()
    }
}

/// What the engine runs on, by another clock.
pub struct By<E> {
    context: E,
    time: Time,
}

impl<E> By<E> {
    /// The same by this clock.
    pub fn new(context: E, time: Time) -> By<E> {
        By { context, time }
    }
}

impl<E: Clock> Clock for By<E> {
    fn current(&self) -> SystemTime {
        self.time.now()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send + 'static + use<E> {
        self.context.sleep(duration)
    }

    fn sleep_until(&self, deadline: SystemTime) -> impl Future<Output = ()> + Send + 'static + use<E> {
        self.context.sleep(deadline.duration_since(self.current()).unwrap_or_default())
    }
}

impl<E: Clock> GovernorClock for By<E> {
    type Instant = SystemTime;

    fn now(&self) -> SystemTime {
        self.time.now()
    }
}

impl<E: Clock> ReasonablyRealtime for By<E> {}

impl<E: Supervisor> Supervisor for By<E> {
    fn name(&self) -> Name {
        self.context.name()
    }

    fn child(&self, label: &'static str) -> Self {
        By { context: self.context.child(label), time: self.time.clone() }
    }

    fn with_attribute(self, key: &'static str, value: impl std::fmt::Display) -> Self {
        By { context: self.context.with_attribute(key, value), ..self }
    }
}

impl<E: Spawner> Spawner for By<E> {
    fn shared(self, blocking: bool) -> Self {
        By { context: self.context.shared(blocking), ..self }
    }

    fn dedicated(self) -> Self {
        By { context: self.context.dedicated(), ..self }
    }

    fn spawn<F, Fut, T>(self, f: F) -> Handle<T>
    where
        F: FnOnce(Self) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let By { context, time } = self;
        context.spawn(move |context| f(By { context, time }))
    }

    async fn stop(self, value: i32, timeout: Option<Duration>) -> Result<(), Error> {
        self.context.stop(value, timeout).await
    }

    fn stopped(&self) -> Signal {
        self.context.stopped()
    }
}

impl<E: Metrics> Metrics for By<E> {
    fn register<N: Into<String>, H: Into<String>, M: Metric>(&self, name: N, help: H, metric: M) -> Registered<M> {
        self.context.register(name, help, metric)
    }

    fn encode(&self) -> String {
        self.context.encode()
    }
}

impl<E: Network> Network for By<E> {
    type Listener = E::Listener;

    async fn bind(&self, socket: SocketAddr) -> Result<E::Listener, Error> {
        self.context.bind(socket).await
    }

    async fn dial(&self, socket: SocketAddr) -> Result<(SinkOf<Self>, StreamOf<Self>), Error> {
        self.context.dial(socket).await
    }
}

impl<E: Resolver> Resolver for By<E> {
    async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, Error> {
        self.context.resolve(host).await
    }
}

impl<E: Storage> Storage for By<E> {
    type Blob = E::Blob;

    async fn open_versioned(
        &self,
        partition: &str,
        name: &[u8],
        versions: RangeInclusive<BlobVersion>,
    ) -> Result<(E::Blob, u64, BlobVersion), Error> {
        self.context.open_versioned(partition, name, versions).await
    }

    async fn remove(&self, partition: &str, name: Option<&[u8]>) -> Result<(), Error> {
        self.context.remove(partition, name).await
    }

    async fn scan(&self, partition: &str) -> Result<Vec<Vec<u8>>, Error> {
        self.context.scan(partition).await
    }
}

impl<E: CryptoRng> TryRng for By<E> {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.context.next_u32())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.context.next_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.context.fill_bytes(bytes);
        Ok(())
    }
}

impl<E: CryptoRng> TryCryptoRng for By<E> {}

/// A handshake with the time of day in it, whatever clock the network runs by.
#[derive(Clone)]
pub struct Dated<H> {
    handshake: H,
    day: Time,
}

impl<H> Dated<H> {
    /// A handshake by this clock.
    pub fn new(handshake: H, day: Time) -> Dated<H> {
        Dated { handshake, day }
    }
}

impl<H: Handshake> Handshake for Dated<H> {
    type PublicKey = H::PublicKey;
    type Error = H::Error;

    fn public_key(&self) -> H::PublicKey {
        self.handshake.public_key()
    }

    async fn dial<E, I, O>(
        self,
        context: E,
        namespace: &[u8],
        peer: H::PublicKey,
        stream: &mut I,
        sink: &mut O,
    ) -> Result<Transcript, H::Error>
    where
        E: Clock + CryptoRng,
        I: Stream,
        O: Sink,
    {
        self.handshake.dial(By::new(context, self.day), namespace, peer, stream, sink).await
    }

    async fn listen<E, I, O, B, F>(
        self,
        context: E,
        namespace: &[u8],
        bouncer: B,
        stream: &mut I,
        sink: &mut O,
    ) -> Result<(H::PublicKey, Transcript), H::Error>
    where
        E: Clock + CryptoRng,
        I: Stream,
        O: Sink,
        B: FnOnce(H::PublicKey) -> F + Send,
        F: Future<Output = bool> + Send,
    {
        self.handshake.listen(By::new(context, self.day), namespace, bouncer, stream, sink).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Identity, wires};
    use crate::membership::tests::group;
    use commonware_p2p::{Receiver, Recipients, Sender};
    use commonware_runtime::{Runner as _, deterministic};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    const HOUR: Duration = Duration::from_secs(3_600);

    /// A clock of the simulated time that is set back by so many seconds.
    fn set_back(context: &deterministic::Context, by: &Arc<AtomicU64>) -> Time {
        let (context, by) = (context.child("clock"), Arc::clone(by));
        Time::of(move || context.current() + HOUR - Duration::from_secs(by.load(Relaxed)))
    }

    #[test]
    fn deadlines_come_though_the_clock_is_set_back() {
        deterministic::Runner::default().start(|context| async move {
            let by = Arc::new(AtomicU64::new(0));
            let day = By::new(context.child("day"), set_back(&context, &by));
            let begun = context.current();
            let time = context.child("gone_by");
            let steady =
                By::new(day.child("steady"), Time::of(move || begun + (time.current().duration_since(begun).unwrap())));
            let took = async |clock: By<By<deterministic::Context>>| {
                by.store(0, Relaxed);
                let (deadline, begun) = (clock.current() + Duration::from_secs(2), context.current());
                by.store(3_600, Relaxed);
                clock.sleep_until(deadline).await;
                context.current().duration_since(begun).unwrap()
            };
            assert!(took(steady).await < Duration::from_secs(3));
            let own = day.child("own");
            let of_day = By::new(day.child("of_day"), Time::of(move || own.current()));
            assert!(took(of_day).await > HOUR, "it would have stood still");
        });
    }

    /// Whether one of two replicas hears the other, by what their clocks of the day are late.
    fn hears(late: [u64; 2]) -> bool {
        let founded = group("one");
        deterministic::Runner::default().start(|context| async move {
            let [mut one, mut two] = [0, 1].map(|number| {
                let membership = Arc::new(founded.membership.clone());
                let identity = Identity::new(membership, &founded.replicas[number].secret, true).unwrap();
                let context = context.child("replica").with_attribute("number", number);
                // What the engine runs by is an hour apart, as after one was set.
                let own = Arc::new(AtomicU64::new(3_600 * number as u64));
                let day = set_back(&context, &Arc::new(AtomicU64::new(late[number])));
                let steady = By::new(context.child("steady"), set_back(&context, &own));
                wires::open(&steady, &identity, founded.membership.replicas()[number].peers, day).unwrap()
            });
            for _ in 0..20 {
                let _ = one.commands.0.send(Recipients::All, bytes::Bytes::from_static(b"hello"), false);
                tokio::select! {
                    heard = two.commands.1.recv() => return heard.is_ok(),
                    () = context.sleep(Duration::from_secs(1)) => {}
                }
            }
            false
        })
    }

    #[test]
    fn replicas_compare_the_times_of_their_day_and_not_what_they_run_by() {
        assert!(hears([0, 0]));
        assert!(!hears([0, 600]), "ten minutes are too much");
    }
}
