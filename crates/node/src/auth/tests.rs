use super::*;
use crate::keys::{KeyRecord, MemoryKeyStore};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tidings_base::{Now, Wall};

/// A clock that stands until it is moved.
#[derive(Default)]
struct ManualClock(AtomicU64);

impl ManualClock {
    fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        let micros = self.0.load(Ordering::Relaxed);
        Now { mono: Mono(micros * 1_000), wall: Wall(1_800_000_000_000_000 + micros) }
    }
}

/// Counts how often it is asked.
#[derive(Default)]
struct Counting {
    keys: MemoryKeyStore,
    asked: AtomicUsize,
}

#[async_trait]
impl KeyStore for Counting {
    async fn find(&self, id: &str) -> Result<Option<KeyRecord>, Error> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.keys.find(id).await
    }
    async fn apps(&self) -> Result<BTreeMap<String, Vec<KeyRecord>>, Error> {
        self.keys.apps().await
    }
    async fn create_app(&self, first: KeyRecord) -> Result<(), Error> {
        self.keys.create_app(first).await
    }
    async fn add_key(&self, key: KeyRecord) -> Result<(), Error> {
        self.keys.add_key(key).await
    }
    async fn revoke(&self, app: &str, id: &str) -> Result<(), Error> {
        self.keys.revoke(app, id).await
    }
}

struct Fixture {
    auth: Authenticator,
    keys: Arc<Counting>,
    clock: Arc<ManualClock>,
    key: Key,
    peer: Peer,
}

async fn fixture(config: &Config) -> Fixture {
    let (keys, clock) = (Arc::new(Counting::default()), Arc::new(ManualClock::default()));
    let key = Key::random().unwrap();
    keys.create_app(KeyRecord::new(&AppName::parse("shop").unwrap(), &key, Wall(1)).unwrap()).await.unwrap();
    let auth = Authenticator::new(Trust::load(config).unwrap(), keys.clone(), clock.clone());
    let peer = Peer { address: "127.0.0.1:9".parse().unwrap(), tls: false, node: None };
    Fixture { auth, keys, clock, key, peer }
}

impl Fixture {
    async fn verify(&self) -> Result<Identity, Error> {
        self.auth.verify(&self.peer, &self.key.reveal()).await
    }

    fn asked(&self) -> usize {
        self.keys.asked.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn a_verified_key_is_neither_hashed_nor_looked_up_for_every_request() {
    let f = fixture(&Config::default()).await;
    let identity = f.verify().await.unwrap();
    assert_eq!(identity.principal.to_string(), format!("app:shop/{}", f.key.id));
    // If it were hashed again, this would wait for a permit that never comes.
    f.auth.hashing.forget_permits(MAX_HASHING);
    for _ in 0..100 {
        assert_eq!(f.verify().await.unwrap(), identity);
    }
    assert_eq!(f.asked(), 1);
    f.clock.advance(Duration::from_secs(11));
    assert_eq!(f.verify().await.unwrap(), identity);
    assert_eq!(f.asked(), 2, "after the check time the store is asked, and the hash still stands");
}

#[tokio::test]
async fn a_revoked_key_opens_nothing_after_the_check_time() {
    let f = fixture(&Config::default()).await;
    let identity = f.verify().await.unwrap();
    assert!(f.auth.recheck(&identity).await.is_ok());
    f.keys.revoke("shop", &f.key.id).await.unwrap();
    f.clock.advance(Duration::from_secs(11));
    assert_eq!(f.verify().await.unwrap_err().code, "control.unauthenticated");
    assert_eq!(f.auth.recheck(&identity).await.unwrap_err().code, "control.unauthenticated");
}

#[tokio::test]
async fn one_look_serves_all_connections_of_a_key() {
    let f = fixture(&Config::default()).await;
    let identity = f.verify().await.unwrap();
    let before = f.asked();
    for _ in 0..1_000 {
        f.auth.recheck(&identity).await.unwrap();
    }
    assert_eq!(f.asked(), before + 1);
}

#[tokio::test]
async fn a_connection_ends_with_its_token() {
    let f = fixture(&Config::default()).await;
    let principal = Principal::operator(OperatorBy::Key);
    let identity = Identity { principal, until: Some(f.clock.now().wall + Duration::from_secs(5)) };
    assert!(f.auth.recheck(&identity).await.is_ok());
    f.clock.advance(Duration::from_secs(5));
    assert_eq!(f.auth.recheck(&identity).await.unwrap_err().code, "control.unauthenticated");
}

#[tokio::test]
async fn attempts_come_back_with_time_and_keep_no_other_key_out() {
    let mut config = Config::default();
    config.limits.failures_per_minute = 2;
    let f = fixture(&config).await;
    let unauthenticated = || std::borrow::Cow::from("control.unauthenticated");
    // Keys that nobody has made, then a key that somebody has, with a wrong secret.
    let (other, made_up) = (Key::random().unwrap(), Key::random().unwrap().reveal());
    let guess = format!("{KEY_PREFIX}{}.{}", f.key.id, made_up.split_once('.').unwrap().1);
    f.keys.add_key(KeyRecord::new(&AppName::parse("shop").unwrap(), &other, Wall(1)).unwrap()).await.unwrap();
    for wrong in [made_up, guess] {
        let attempt = async || f.auth.verify(&f.peer, &wrong).await.unwrap_err().code;
        assert_eq!((attempt().await, attempt().await), (unauthenticated(), unauthenticated()));
        assert_eq!(attempt().await, "control.busy");
    }
    assert_eq!(
        f.verify().await.unwrap_err().code,
        "control.busy",
        "the key that is guessed at waits if it was never seen"
    );
    assert!(f.auth.verify(&f.peer, &other.reveal()).await.is_ok(), "another key at the same address does not");
    f.clock.advance(Duration::from_secs(31));
    assert!(f.verify().await.is_ok());
}

#[tokio::test]
async fn certificates_and_unconfigured_sockets_count_only_without_a_foreign_page() {
    let f = fixture(&Config::default()).await;
    let uri = Uri::from_static("/v1/admin/status");
    let node = Peer { node: Some(tidings_base::NodeId(2)), ..f.peer.clone() };
    let headers = |pairs: &[(&'static str, &'static str)]| {
        pairs
            .iter()
            .map(|(k, v)| (http::HeaderName::from_static(k), HeaderValue::from_static(v)))
            .collect::<HeaderMap>()
    };
    let plain = headers(&[("host", "localhost")]);
    let foreign = headers(&[("host", "localhost"), ("origin", "https://evil.example")]);
    let who =
        async |peer, headers| f.auth.identify(peer, &uri, headers).await.unwrap().map(|i| i.principal.to_string());
    assert_eq!(who(&node, &plain).await.as_deref(), Some("node:2"));
    assert_eq!(who(&node, &foreign).await, None);
    assert_eq!(who(&f.peer, &plain).await.as_deref(), Some("operator:unconfigured"));
    assert_eq!(who(&f.peer, &foreign).await, None);
    assert_eq!(who(&f.peer, &HeaderMap::new()).await, None, "a request that names no host could be for any");
    let http2 = Uri::from_static("http://[::1]:7400/v1");
    assert!(f.auth.identify(&f.peer, &http2, &HeaderMap::new()).await.unwrap().is_some());
}
