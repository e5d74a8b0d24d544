//! Every metric of this shell, by name.
//!
//! They go to whatever recorder the process has; [`recorder`] installs the Prometheus one that `/metrics` shows.

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::OnceLock;
use std::time::Duration;

const CONNECTIONS: &str = "tidings_connections";
const CONNECTIONS_ACCEPTED: &str = "tidings_connections_accepted_total";
const CONNECTIONS_REFUSED: &str = "tidings_connections_refused_total";
const HANDSHAKES_FAILED: &str = "tidings_tls_handshakes_failed_total";
const REQUESTS: &str = "tidings_http_requests_total";
const REQUEST_SECONDS: &str = "tidings_http_request_seconds";
const RATE_LIMITED: &str = "tidings_rate_limited_total";
const AUTH_FAILURES: &str = "tidings_auth_failures_total";
const MACHINE_INPUTS: &str = "tidings_machine_inputs_total";

/// Bounds of the latency histogram in seconds: from an answer out of memory to the longest call.
const LATENCY_BUCKETS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// The process's Prometheus recorder, installed at the first call. If the process has installed another recorder
/// before, metrics go there and this one stays empty.
pub fn recorder() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let builder = PrometheusBuilder::new();
        let builder = builder
            .set_buckets_for_metric(Matcher::Full(REQUEST_SECONDS.to_owned()), &LATENCY_BUCKETS)
            .unwrap_or_else(|_| PrometheusBuilder::new());
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_ok() {
            describe();
        }
        handle
    })
}

fn describe() {
    describe_gauge!(CONNECTIONS, "Open connections.");
    describe_counter!(CONNECTIONS_ACCEPTED, "Connections accepted.");
    describe_counter!(CONNECTIONS_REFUSED, "Connections closed at once, by reason.");
    describe_counter!(HANDSHAKES_FAILED, "TLS handshakes that failed or took too long.");
    describe_counter!(REQUESTS, "HTTP requests by route, method and status.");
    describe_histogram!(REQUEST_SECONDS, Unit::Seconds, "How long HTTP requests took, by route.");
    describe_counter!(RATE_LIMITED, "Requests refused because their address sent too many.");
    describe_counter!(AUTH_FAILURES, "Wrong credentials.");
    describe_counter!(MACHINE_INPUTS, "Inputs that machines took, by machine.");
}

pub(crate) fn connection_opened() {
    counter!(CONNECTIONS_ACCEPTED).increment(1);
    gauge!(CONNECTIONS).increment(1.0);
}

pub(crate) fn connection_closed() {
    gauge!(CONNECTIONS).decrement(1.0);
}

pub(crate) fn connection_refused(reason: &'static str) {
    counter!(CONNECTIONS_REFUSED, "reason" => reason).increment(1);
}

pub(crate) fn handshake_failed() {
    counter!(HANDSHAKES_FAILED).increment(1);
}

pub(crate) fn rate_limited() {
    counter!(RATE_LIMITED).increment(1);
}

pub(crate) fn auth_failed() {
    counter!(AUTH_FAILURES).increment(1);
}

/// `route` is the route's pattern, never the path itself, so that the number of series is bounded.
pub(crate) fn request(route: &str, method: &'static str, status: u16, took: Duration) {
    counter!(REQUESTS, "route" => route.to_owned(), "method" => method, "status" => status.to_string()).increment(1);
    histogram!(REQUEST_SECONDS, "route" => route.to_owned()).record(took);
}

pub(crate) fn machine_inputs(machine: &'static str, count: usize) {
    counter!(MACHINE_INPUTS, "machine" => machine).increment(count as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_shown() {
        let handle = recorder();
        connection_refused("total");
        request("/v1/admin/status", "GET", 200, Duration::from_millis(3));
        let text = handle.render();
        assert!(text.contains("tidings_connections_refused_total{reason=\"total\"}"), "{text}");
        assert!(
            text.contains("tidings_http_request_seconds_bucket{route=\"/v1/admin/status\",le=\"0.005\"}"),
            "{text}"
        );
    }
}
