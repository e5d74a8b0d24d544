//! Tells the binary which commit it was built from, so that a failing simulation can name it.

use std::process::Command;

/// Where git notes each move of the head.
const MOVES: &str = ".git/logs/HEAD";

fn main() {
    // Moves with every commit. Watching a file that is not there would build again every time.
    if std::path::Path::new(MOVES).exists() {
        println!("cargo:rerun-if-changed={MOVES}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    let commit = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok();
    let commit =
        commit.filter(|output| output.status.success()).and_then(|output| String::from_utf8(output.stdout).ok());
    println!("cargo:rustc-env=TIDINGS_COMMIT={}", commit.as_deref().map_or("unknown", str::trim));
}
