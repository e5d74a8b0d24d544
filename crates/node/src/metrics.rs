//! Every metric of this shell, by name.
//!
//! They go to whatever recorder the process has; [`recorder`] installs the Prometheus one that `/metrics` shows.

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::OnceLock;
use std::time::Duration;
use tidings_placement::manager::{Counts, Gauges};

const CONNECTIONS: &str = "tidings_connections";
const CONNECTIONS_ACCEPTED: &str = "tidings_connections_accepted_total";
const CONNECTIONS_REFUSED: &str = "tidings_connections_refused_total";
const HANDSHAKES_FAILED: &str = "tidings_tls_handshakes_failed_total";
const REQUESTS: &str = "tidings_http_requests_total";
const REQUEST_SECONDS: &str = "tidings_http_request_seconds";
const RATE_LIMITED: &str = "tidings_rate_limited_total";
const AUTH_FAILURES: &str = "tidings_auth_failures_total";
const MACHINE_INPUTS: &str = "tidings_machine_inputs_total";
const CELL_KEEP_ALIVES: &str = "tidings_cell_keep_alives_total";
const CELL_KEEP_ALIVE_HELD: &str = "tidings_cell_keep_alive_held_seconds";
const CELL_LEASE: &str = "tidings_cell_lease_seconds";
const CELL_INVALIDATION_WAIT: &str = "tidings_cell_invalidation_wait_seconds";
const CELL_FAIL_OVER: &str = "tidings_cell_fail_over_seconds";
const CELL_FAIL_OVERS: &str = "tidings_cell_fail_overs_total";
const CELL_SESSIONS: &str = "tidings_cell_sessions";
const CELL_HANDLES: &str = "tidings_cell_handles";
const CELL_INTEREST: &str = "tidings_cell_interest";
const CELL_WAITERS: &str = "tidings_cell_lock_waiters";
const CELL_UNDELIVERED: &str = "tidings_cell_undelivered";
const CELL_CLOCKS: &str = "tidings_cell_clocks_out_of_bound_total";
const PLACEMENT_LEADER: &str = "tidings_placement_leader";
const PLACEMENT_EPOCH: &str = "tidings_placement_epoch";
const PLACEMENT_NAMESPACES: &str = "tidings_placement_namespaces";
const PLACEMENT_OWNERS: &str = "tidings_placement_owners";
const PLACEMENT_RANGES: &str = "tidings_placement_ranges";
const PLACEMENT_HELD: &str = "tidings_placement_held_polls";
const PLACEMENT_TIGHT: &str = "tidings_placement_tight_namespaces";
const PLACEMENT_DAMAGED: &str = "tidings_placement_damaged_namespaces";
const PLACEMENT_COMMITS: &str = "tidings_placement_commits_total";
const PLACEMENT_GRANTS: &str = "tidings_placement_grants_total";
const PLACEMENT_RENEWALS: &str = "tidings_placement_renewals_total";
const PLACEMENT_RECALLS: &str = "tidings_placement_recalls_total";
const PLACEMENT_LOSSES: &str = "tidings_placement_losses_total";
const PLACEMENT_MOVES: &str = "tidings_placement_moves_total";
const PLACEMENT_RACES: &str = "tidings_placement_races_total";
const PLACEMENT_PUSHES: &str = "tidings_placement_lookup_pushes_total";
const NOTIFY_CHANNELS: &str = "tidings_notify_channels";
const NOTIFY_PUBLISHED: &str = "tidings_notify_published_total";
const NOTIFY_SENT: &str = "tidings_notify_sent_total";
const NOTIFY_DROPPED: &str = "tidings_notify_dropped_total";
const NOTIFY_BEHIND: &str = "tidings_notify_behind_total";
const NOTIFY_HOOK_ANSWERS: &str = "tidings_notify_hook_answers_total";
const NOTIFY_HOOK_FAILURES: &str = "tidings_notify_hook_failures_total";
const NOTIFY_SPOILED: &str = "tidings_notify_spoiled_total";
const NOTIFY_TOMBSTONES: &str = "tidings_notify_tombstones_total";
const NOTIFY_LEFTOVERS: &str = "tidings_notify_leftovers_total";
const NOTIFY_STAGE: &str = "tidings_notify_stage_seconds";
const TABLES_PARTITIONS: &str = "tidings_tables_partitions";
const TABLES_WATCHERS: &str = "tidings_tables_live_queries";
const TABLES_OVERRUN: &str = "tidings_tables_live_queries_overrun_total";
const TABLES_ANSWERS: &str = "tidings_tables_answers_total";
const TABLES_COPIES: &str = "tidings_tables_copies";
const TABLES_COPIED: &str = "tidings_tables_copied_reads_total";
const TABLES_DROPPED: &str = "tidings_tables_dropped";
const TABLES_ROWS_DELETED: &str = "tidings_tables_rows_deleted_total";
const TABLES_REMAINS: &str = "tidings_tables_remains";
const TABLES_TOMBSTONES: &str = "tidings_tables_tombstones_total";
const CELL_REST_SESSIONS: &str = "tidings_cell_rest_sessions";

/// The stages of a notification, in the order of its way.
pub(crate) const NOTIFY_STAGES: [&str; 5] = ["call", "feed", "bridge", "matcher", "registrar"];
/// What connections are refused for.
const REFUSED_FOR: [&str; 3] = ["total", "address", "rate"];
/// What partitions of tables answer.
const TABLES_KINDS: [&str; 6] = ["written", "conflict", "rows", "stat", "moved", "refused"];

/// Bounds of the latency histogram in seconds: from an answer out of memory to the longest call.
pub(crate) const LATENCY_BUCKETS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Bounds of the histogram of waits for acknowledgements, in seconds: from one round trip to a lost client's cache lease.
const WAIT_BUCKETS: [f64; 10] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 2.0, 5.0];

/// Bounds of the histograms of leases and held KeepAlives, in seconds: up to the ceiling.
const LEASE_BUCKETS: [f64; 8] = [0.1, 1.0, 3.0, 6.0, 9.0, 12.0, 30.0, 60.0];

/// The process's Prometheus recorder, installed at the first call. If the process has installed another recorder
/// before, metrics go there and this one stays empty.
pub fn recorder() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let recorder = builder().build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_ok() {
            describe();
            begin();
        }
        handle
    })
}

fn builder() -> PrometheusBuilder {
    let buckets: [(&str, &[f64]); 5] = [
        (NOTIFY_STAGE, &LATENCY_BUCKETS),
        (REQUEST_SECONDS, &LATENCY_BUCKETS),
        (CELL_INVALIDATION_WAIT, &WAIT_BUCKETS),
        (CELL_LEASE, &LEASE_BUCKETS),
        (CELL_KEEP_ALIVE_HELD, &LEASE_BUCKETS),
    ];
    buckets.into_iter().fold(PrometheusBuilder::new(), |builder, (name, bounds)| {
        // Only an empty list of bounds is refused.
        builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds).unwrap_or_default()
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
    describe_counter!(CELL_KEEP_ALIVES, "KeepAlives that the master answered.");
    describe_histogram!(CELL_KEEP_ALIVE_HELD, Unit::Seconds, "How long the master held KeepAlives.");
    describe_histogram!(CELL_LEASE, Unit::Seconds, "Leases that KeepAlives were given; 0 = not extended.");
    describe_histogram!(CELL_INVALIDATION_WAIT, Unit::Seconds, "How long changes waited for acknowledgements.");
    describe_gauge!(CELL_FAIL_OVER, Unit::Seconds, "From the last leadership here to the cell being open.");
    describe_counter!(CELL_FAIL_OVERS, "How often the cell opened under a master here.");
    describe_counter!(CELL_CLOCKS, "How often a client's clock was found out of bound.");
    describe_gauge!(CELL_SESSIONS, "Sessions, as the master counts them.");
    describe_gauge!(CELL_HANDLES, "Open handles.");
    describe_gauge!(CELL_INTEREST, "Entries that sessions may have cached.");
    describe_gauge!(CELL_WAITERS, "Requests for locks in queues.");
    describe_gauge!(CELL_UNDELIVERED, "Events and invalidations not yet acknowledged.");
    describe_gauge!(PLACEMENT_LEADER, "1 where the placement manager leads.");
    describe_gauge!(PLACEMENT_EPOCH, "The epoch of the leadership here; 0 = none.");
    describe_gauge!(PLACEMENT_NAMESPACES, "Namespaces that the leader here manages.");
    describe_gauge!(PLACEMENT_OWNERS, "Owners that count as alive.");
    describe_gauge!(PLACEMENT_RANGES, "Ranges of all tables.");
    describe_gauge!(PLACEMENT_HELD, "Polls of owners and lookups that are held.");
    describe_gauge!(PLACEMENT_TIGHT, "Namespaces whose leases may not outlast a manager's death.");
    describe_gauge!(PLACEMENT_DAMAGED, "Namespaces that are not led, since a file of theirs cannot be understood.");
    describe_counter!(PLACEMENT_COMMITS, "Changes of placement that were sent to the cell.");
    describe_counter!(PLACEMENT_GRANTS, "Leases granted; one that was not heard counts again.");
    describe_counter!(PLACEMENT_RENEWALS, "Leases renewed.");
    describe_counter!(PLACEMENT_RECALLS, "Ranges that were called back from their holders.");
    describe_counter!(PLACEMENT_LOSSES, "Ranges that were given away without their state.");
    describe_counter!(PLACEMENT_MOVES, "Ranges that moved with their state.");
    describe_counter!(PLACEMENT_RACES, "Messages of owners that were dropped as races.");
    describe_counter!(PLACEMENT_PUSHES, "Answers to waiting lookups that told of changes.");
    describe_gauge!(NOTIFY_CHANNELS, "Clients of Notify that are connected to this node.");
    describe_counter!(NOTIFY_PUBLISHED, "Publications that were taken here.");
    describe_counter!(NOTIFY_SENT, "Notifications that registrars here sent, repeats included, by kind.");
    describe_counter!(NOTIFY_DROPPED, "Messages to clients that were dropped because they take too little.");
    describe_counter!(NOTIFY_BEHIND, "Versions that were published after a later one, and ignored.");
    describe_counter!(NOTIFY_HOOK_ANSWERS, "What hooks said, by hook and answer.");
    describe_counter!(NOTIFY_HOOK_FAILURES, "Call-outs without an answer, by application and reason.");
    describe_counter!(NOTIFY_SPOILED, "Entries of the feed that are no publications.");
    describe_counter!(NOTIFY_TOMBSTONES, "Tombstones that have lived long enough and were removed from the store.");
    describe_counter!(NOTIFY_LEFTOVERS, "Rows from before a loss or a reset that were deleted from the store.");
    describe_histogram!(NOTIFY_STAGE, Unit::Seconds, "How long notifications took, by stage.");
    describe_gauge!(TABLES_PARTITIONS, "Partitions of tables that are served here.");
    describe_gauge!(TABLES_WATCHERS, "Live queries of clients that are connected to this node.");
    describe_counter!(
        TABLES_OVERRUN,
        "Live queries that ended because their clients took too little of what they were told."
    );
    describe_counter!(TABLES_ANSWERS, "What partitions here answered, by kind; of reads each piece.");
    describe_gauge!(TABLES_COPIES, "Partitions of other nodes that are copied here.");
    describe_counter!(TABLES_COPIED, "Reads that copies here answered, or passed on to owners, by outcome.");
    describe_gauge!(TABLES_DROPPED, "Dropped tables of the cluster whose rows are not all deleted yet.");
    describe_counter!(TABLES_ROWS_DELETED, "Rows of dropped tables that this node has deleted.");
    describe_gauge!(TABLES_REMAINS, "Dropped tables whose tombstones were still in the store at the last look.");
    describe_counter!(TABLES_TOMBSTONES, "Tombstones of tables' rows that have lived long enough and were removed.");
    describe_gauge!(CELL_REST_SESSIONS, "Sessions that this node holds for callers of REST.");
}

/// Shows everything from the start: whoever watches a number sees it leave zero, and a name that is missing is a mistake.
/// Labels that come from outside (routes, applications, machines) begin with their first event.
fn begin() {
    for name in [
        CONNECTIONS_ACCEPTED,
        HANDSHAKES_FAILED,
        RATE_LIMITED,
        AUTH_FAILURES,
        CELL_KEEP_ALIVES,
        CELL_FAIL_OVERS,
        CELL_CLOCKS,
        NOTIFY_PUBLISHED,
        NOTIFY_DROPPED,
        NOTIFY_BEHIND,
        NOTIFY_SPOILED,
        NOTIFY_TOMBSTONES,
        NOTIFY_LEFTOVERS,
        TABLES_ROWS_DELETED,
        TABLES_TOMBSTONES,
        TABLES_OVERRUN,
    ] {
        counter!(name).increment(0);
    }
    REFUSED_FOR.iter().for_each(|reason| counter!(CONNECTIONS_REFUSED, "reason" => *reason).increment(0));
    TABLES_KINDS.iter().for_each(|kind| counter!(TABLES_ANSWERS, "kind" => *kind).increment(0));
    ["answered", "passed"].iter().for_each(|outcome| counter!(TABLES_COPIED, "outcome" => *outcome).increment(0));
    ["version", "unknown"].iter().for_each(|kind| counter!(NOTIFY_SENT, "kind" => *kind).increment(0));
    for name in [
        CONNECTIONS,
        CELL_FAIL_OVER,
        CELL_REST_SESSIONS,
        NOTIFY_CHANNELS,
        TABLES_PARTITIONS,
        TABLES_WATCHERS,
        TABLES_DROPPED,
        TABLES_REMAINS,
        TABLES_COPIES,
    ] {
        gauge!(name).increment(0.0);
    }
    cell_gauges(&CellGauges::default());
    placement(&Counts::default(), &Counts::default(), &Gauges::default());
    // A histogram is there once it has a handle.
    for name in [CELL_KEEP_ALIVE_HELD, CELL_LEASE, CELL_INVALIDATION_WAIT] {
        drop(histogram!(name));
    }
    NOTIFY_STAGES.iter().for_each(|stage| drop(histogram!(NOTIFY_STAGE, "stage" => *stage)));
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

pub(crate) fn cell_kept_alive(held: Duration, lease: Duration) {
    counter!(CELL_KEEP_ALIVES).increment(1);
    histogram!(CELL_KEEP_ALIVE_HELD).record(held);
    histogram!(CELL_LEASE).record(lease);
}

pub(crate) fn cell_invalidation_wait(wait: Duration) {
    histogram!(CELL_INVALIDATION_WAIT).record(wait);
}

pub(crate) fn cell_fail_over(took: Duration) {
    counter!(CELL_FAIL_OVERS).increment(1);
    gauge!(CELL_FAIL_OVER).set(took.as_secs_f64());
}

pub(crate) fn cell_clock_out_of_bound() {
    counter!(CELL_CLOCKS).increment(1);
}

/// How many there are at the master.
#[derive(Default)]
pub(crate) struct CellGauges {
    pub sessions: usize,
    pub handles: usize,
    pub interest: usize,
    pub waiters: usize,
    pub undelivered: usize,
}

pub(crate) fn cell_gauges(now: &CellGauges) {
    gauge!(CELL_SESSIONS).set(now.sessions as f64);
    gauge!(CELL_HANDLES).set(now.handles as f64);
    gauge!(CELL_INTEREST).set(now.interest as f64);
    gauge!(CELL_WAITERS).set(now.waiters as f64);
    gauge!(CELL_UNDELIVERED).set(now.undelivered as f64);
}

/// What the manager did since it was last looked at, and what it has.
pub(crate) fn placement(before: &Counts, now: &Counts, gauges: &Gauges) {
    for (name, before, now) in [
        (PLACEMENT_COMMITS, before.commits, now.commits),
        (PLACEMENT_GRANTS, before.grants, now.grants),
        (PLACEMENT_RENEWALS, before.renewals, now.renewals),
        (PLACEMENT_RECALLS, before.recalls, now.recalls),
        (PLACEMENT_LOSSES, before.losses, now.losses),
        (PLACEMENT_MOVES, before.moves, now.moves),
        (PLACEMENT_RACES, before.races, now.races),
        (PLACEMENT_PUSHES, before.pushes, now.pushes),
    ] {
        counter!(name).increment(now.saturating_sub(before));
    }
    gauge!(PLACEMENT_LEADER).set(f64::from(u8::from(gauges.epoch > 0)));
    gauge!(PLACEMENT_EPOCH).set(gauges.epoch as f64);
    gauge!(PLACEMENT_NAMESPACES).set(gauges.namespaces as f64);
    gauge!(PLACEMENT_OWNERS).set(gauges.owners as f64);
    gauge!(PLACEMENT_RANGES).set(gauges.ranges as f64);
    gauge!(PLACEMENT_HELD).set(gauges.held as f64);
    gauge!(PLACEMENT_TIGHT).set(gauges.tight as f64);
    gauge!(PLACEMENT_DAMAGED).set(gauges.damaged as f64);
}

pub(crate) fn notify_channels(count: usize) {
    gauge!(NOTIFY_CHANNELS).set(count as f64);
}

pub(crate) fn notify_published(count: usize) {
    counter!(NOTIFY_PUBLISHED).increment(count as u64);
}

pub(crate) fn notify_sent(unknown: bool) {
    counter!(NOTIFY_SENT, "kind" => if unknown { "unknown" } else { "version" }).increment(1);
}

pub(crate) fn notify_dropped() {
    counter!(NOTIFY_DROPPED).increment(1);
}

pub(crate) fn notify_behind() {
    counter!(NOTIFY_BEHIND).increment(1);
}

pub(crate) fn notify_judged(hook: &'static str, answer: &'static str) {
    counter!(NOTIFY_HOOK_ANSWERS, "hook" => hook, "answer" => answer).increment(1);
}

pub(crate) fn notify_hook_failed(app: &str, reason: &'static str) {
    counter!(NOTIFY_HOOK_FAILURES, "app" => app.to_owned(), "reason" => reason).increment(1);
}

pub(crate) fn notify_spoiled() {
    counter!(NOTIFY_SPOILED).increment(1);
}

pub(crate) fn notify_tombstones(removed: u64) {
    counter!(NOTIFY_TOMBSTONES).increment(removed);
}

pub(crate) fn notify_leftovers(deleted: u64) {
    counter!(NOTIFY_LEFTOVERS).increment(deleted);
}

pub(crate) fn notify_stage(stage: &'static str, took: Duration) {
    histogram!(NOTIFY_STAGE, "stage" => stage).record(took);
}

pub(crate) fn tables_partitions(count: usize) {
    gauge!(TABLES_PARTITIONS).set(count as f64);
}

pub(crate) fn tables_watchers(count: usize) {
    gauge!(TABLES_WATCHERS).set(count as f64);
}

pub(crate) fn tables_overrun() {
    counter!(TABLES_OVERRUN).increment(1);
}

pub(crate) fn tables_answered(kind: &'static str) {
    counter!(TABLES_ANSWERS, "kind" => kind).increment(1);
}

pub(crate) fn tables_copies(count: usize) {
    gauge!(TABLES_COPIES).set(count as f64);
}

pub(crate) fn tables_copied(answered: bool) {
    counter!(TABLES_COPIED, "outcome" => if answered { "answered" } else { "passed" }).increment(1);
}

pub(crate) fn tables_dropped(count: usize) {
    gauge!(TABLES_DROPPED).set(count as f64);
}

pub(crate) fn tables_rows_deleted(count: usize) {
    counter!(TABLES_ROWS_DELETED).increment(count as u64);
}

pub(crate) fn tables_remains(count: usize) {
    gauge!(TABLES_REMAINS).set(count as f64);
}

pub(crate) fn tables_tombstones(removed: u64) {
    counter!(TABLES_TOMBSTONES).increment(removed);
}

pub(crate) fn cell_rest_sessions(count: usize) {
    gauge!(CELL_REST_SESSIONS).set(count as f64);
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
