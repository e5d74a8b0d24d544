//! Replicas that lie on purpose, for tests; named by their sin.

/// What a replica does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sin {
    /// Answers every command with a result of its own.
    Forger,
    /// Executes, and answers nobody.
    Mute,
    /// Answers what it first answered, whatever was written since.
    Stale,
    /// Answers every client, and every question, with something else.
    Equivocator,
}

impl Sin {
    /// By its name.
    pub fn parse(name: &str) -> Result<Sin, String> {
        match name {
            "forger" => Ok(Sin::Forger),
            "mute" => Ok(Sin::Mute),
            "stale" => Ok(Sin::Stale),
            "equivocator" => Ok(Sin::Equivocator),
            _ => Err(format!("`{name}` is no sin")),
        }
    }
}
