//! Keys and values whose reads take a while, one at a time; writes take none.

use bytes::{Bytes, BytesMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidings_bft::codec::{Malformed, Reader};
use tidings_bft::kv::KeyValue;
use tidings_bft::seat::Durable;
use tidings_sketch::direct::Reads;
use tidings_sketch::replica::Service;
use tidings_sketch::sigma::Sigma;

/// One replica's service. Copies share the one who serves.
#[derive(Clone, Debug)]
pub struct Slow {
    rows: KeyValue,
    takes: Duration,
    busy: Arc<Mutex<()>>,
}

impl Slow {
    pub fn new(takes: Duration) -> Slow {
        Slow { rows: KeyValue::default(), takes, busy: Arc::default() }
    }

    // It is what it is for; nobody else runs on its thread.
    #[allow(clippy::disallowed_methods)]
    fn work(&self) {
        if self.takes.is_zero() {
            return;
        }
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::sleep(self.takes);
    }
}

impl Service for Slow {
    fn execute(&mut self, sigma: Sigma, request: &Bytes) -> Bytes {
        if self.rows.is_read(request) {
            self.work();
        }
        self.rows.execute(sigma, request)
    }
}

impl Reads for Slow {
    fn is_read(&self, request: &Bytes) -> bool {
        self.rows.is_read(request)
    }

    fn read(&self, request: &Bytes) -> Bytes {
        self.work();
        self.rows.read(request)
    }
}

impl Durable for Slow {
    const SLOW: bool = true;

    fn save(&self, out: &mut BytesMut) {
        self.rows.save(out);
    }

    fn load(&self, reader: &mut Reader) -> Result<Slow, Malformed> {
        Ok(Slow { rows: self.rows.load(reader)?, ..self.clone() })
    }
}
