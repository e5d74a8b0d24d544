//! An application's own events are read as publications.

use super::{hears, registered, start_with};
use crate::process::{http, turn};

#[test]
fn events_in_an_applications_own_format_are_published() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let more = "[notify.formats.shop]\nobject = \"product/{/item/sku}\"\nversion = \"/revision\"\n";
    let server = start_with(dir.path(), more);
    let watcher = server.start_command(&["notify", "watch", "shop", "product/a7", "product/b8", "--json"]);
    registered(&server, "product/a7", 1);
    registered(&server, "product/b8", 1);
    let post = |app: &str, body: &str| http("POST", server.address, &format!("/v1/notify-events/{app}"), body).unwrap();
    let event = |sku: &str, revision: u64| format!("{{\"item\": {{\"sku\": \"{sku}\"}}, \"revision\": {revision}}}");
    assert_eq!(post("shop", &event("a7", 3)).0, 204);
    hears(&watcher, "product/a7", 3);
    assert_eq!(post("shop", &format!("[{}, {}]", event("a7", 4), event("b8", 1))).0, 204);
    hears(&watcher, "product/a7", 4);
    hears(&watcher, "product/b8", 1);
    for (app, body, status, code) in [
        ("shop", "{\"item\": {}}", 400, "notify.bad_event"),
        ("shop", "[]", 400, "notify.bad_batch"),
        ("blog", "{}", 404, "notify.no_format"),
    ] {
        let (answered, said) = post(app, body);
        assert!(answered == status && said.contains(code), "{answered} {said}");
    }
}
