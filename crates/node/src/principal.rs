//! Who is calling, and from where.

use crate::config::Grant;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tidings_base::{Class, Error, NodeId, Wall};
use tidings_predicate::Packed;

/// The longest name of an application: it becomes part of keys and paths.
pub const MAX_APP_NAME: usize = 63;

/// The name of an application (a tenant): lower-case letters, digits and dashes, beginning with a letter or digit.
///
/// The alphabet has no `/` and no `.`, so that `name/…` prefixes never overlap and names that begin with a dot are
/// free for the platform itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppName(Arc<str>);

impl AppName {
    /// The application of whoever uses an unconfigured server.
    pub fn default_app() -> AppName {
        AppName(Arc::from("default"))
    }

    /// Parses a name.
    pub fn parse(name: &str) -> Result<AppName, Error> {
        let fits = (1..=MAX_APP_NAME).contains(&name.len())
            && !name.starts_with('-')
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if fits {
            return Ok(AppName(Arc::from(name)));
        }
        Err(Error::new("admin.bad_app_name", Class::Invalid, format!("`{}` cannot name an application", clip(name)))
            .hint(format!("Use 1 to {MAX_APP_NAME} lower-case letters, digits and dashes, not beginning with a dash.")))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AppName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The start of a text that came from outside, short enough for a message.
pub(crate) fn clip(text: &str) -> String {
    const SHOWN: usize = 80;
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut short: String = text.chars().take(SHOWN).map(clean).collect();
    if text.chars().nth(SHOWN).is_some() {
        short.push('…');
    }
    short
}

/// Who is calling. Every request has one before it is looked at; who has none is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// An application, by one of its keys.
    App {
        /// The application.
        app: AppName,
        /// The key's id (not its secret), for logs and revocation.
        key: Arc<str>,
    },
    /// A person or device that an issuer vouches for.
    User {
        /// The application that the issuer belongs to.
        app: AppName,
        /// The issuer, as configured.
        issuer: Arc<str>,
        /// The token's `sub`.
        subject: Arc<str>,
        /// What the issuer's users may do.
        grants: Arc<[Grant]>,
        /// The objects of Notify that the token's claim `notify` lists, as patterns.
        objects: Arc<[String]>,
        /// What the token says, for predicates of Tables.
        claims: Claims,
    },
    /// Somebody who shows nothing, on a server that would know callers: what an application has opened to everybody is all
    /// there is. Only routes that say so let it in.
    Nobody {
        /// The application that the request names.
        app: AppName,
    },
    /// Another node of this cluster, by its certificate.
    Node(NodeId),
    /// Who runs the cluster.
    Operator {
        /// How it is known.
        by: OperatorBy,
        /// The application that it acts in.
        app: AppName,
    },
}

/// The verified claims of a user: what predicates see as `user`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// By name.
    pub columns: Arc<Packed>,
    /// R8: when they end.
    pub until: Wall,
}

/// No claims.
impl Default for Claims {
    fn default() -> Claims {
        Claims { columns: Arc::new(Packed::empty()), until: Wall::default() }
    }
}

/// How an operator is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorBy {
    /// By the operator key.
    Key,
    /// By running the node in its own process.
    InProcess,
    /// By nothing: the server has no authentication configured, and whoever reaches it is trusted.
    Unconfigured,
}

impl Principal {
    /// The application whose data this principal's requests are about; nodes speak for none.
    pub fn app(&self) -> Option<AppName> {
        match self {
            Principal::App { app, .. }
            | Principal::User { app, .. }
            | Principal::Nobody { app }
            | Principal::Operator { app, .. } => Some(app.clone()),
            Principal::Node(_) => None,
        }
    }

    /// An operator, in the application that nobody needs to name.
    pub fn operator(by: OperatorBy) -> Principal {
        Principal::Operator { by, app: AppName::default_app() }
    }

    /// The same principal in the application that its request names: operators act in any, others in their own.
    pub fn acting_in(self, name: &str) -> Result<Principal, Error> {
        let named = AppName::parse(name)?;
        match self {
            Principal::Operator { by, .. } => Ok(Principal::Operator { by, app: named }),
            other if other.app().as_ref() == Some(&named) => Ok(other),
            other => {
                let message = format!("{other} may not act in the application `{named}`");
                Err(Error::new("control.forbidden", Class::Refused, message)
                    .hint("Only operators name another application than their own."))
            }
        }
    }
}

/// As in `Welcome.principal` and logs: `kind:name`.
impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::App { app, key } => write!(f, "app:{app}/{key}"),
            Principal::User { app, subject, .. } => write!(f, "user:{app}/{}", clip(subject)),
            Principal::Nobody { app } => write!(f, "nobody:{app}"),
            Principal::Node(node) => write!(f, "node:{node}"),
            Principal::Operator { by: OperatorBy::Key, .. } => f.write_str("operator:key"),
            Principal::Operator { by: OperatorBy::InProcess, .. } => f.write_str("operator:in-process"),
            Principal::Operator { by: OperatorBy::Unconfigured, .. } => f.write_str("operator:unconfigured"),
        }
    }
}

/// A principal and how long it may be taken for that without asking again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Who it is.
    pub principal: Principal,
    /// A token's end; a connection must not outlive it.
    pub until: Option<Wall>,
}

impl Identity {
    /// The same in the application that a request names, if it names one.
    pub fn acting_in(self, app: Option<&str>) -> Result<Identity, Error> {
        match app {
            Some(app) => Ok(Identity { principal: self.principal.acting_in(app)?, until: self.until }),
            None => Ok(self),
        }
    }
}

/// What the port knows of a connection before anything was said on it. Every request carries it as an extension.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The other end of the socket itself; no header is ever believed about it.
    pub address: SocketAddr,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// The node that its client certificate names, if it showed one that our CA signed.
    pub node: Option<NodeId>,
}

impl Peer {
    /// The address that limits are counted by: an IPv6 host owns its whole /64, so that is what counts.
    pub fn counted_as(&self) -> IpAddr {
        counted_as(self.address.ip())
    }
}

/// The address that limits are counted by (see [`Peer::counted_as`]).
pub(crate) fn counted_as(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => {
            let s = v6.segments();
            IpAddr::from([s[0], s[1], s[2], s[3], 0, 0, 0, 0])
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_applications_leave_no_room_for_prefix_tricks() {
        for good in ["a", "default", "shop-2", "0x", &"a".repeat(63)] {
            assert_eq!(AppName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", "A", "a/b", ".cell", "a b", "ä", "a\0", &"a".repeat(64)] {
            assert_eq!(AppName::parse(bad).unwrap_err().code, "admin.bad_app_name", "{bad:?}");
        }
    }

    #[test]
    fn operators_act_in_any_application_and_others_in_their_own() {
        let app = |name| AppName::parse(name).unwrap();
        let operator = Principal::operator(OperatorBy::Key);
        assert_eq!(operator.app(), Some(AppName::default_app()));
        assert_eq!(operator.clone().acting_in("shop").unwrap().app(), Some(app("shop")));
        assert_eq!(operator.acting_in("../shop").unwrap_err().code, "admin.bad_app_name");
        let shop = Principal::App { app: app("shop"), key: Arc::from("k") };
        assert_eq!(shop.clone().acting_in("shop").unwrap(), shop);
        for other in [shop, Principal::Node(NodeId(1))] {
            assert_eq!(other.acting_in("blog").unwrap_err().code, "control.forbidden");
        }
    }

    #[test]
    fn limits_count_an_ipv6_network_as_one() {
        let (a, b) = ("2001:db8:1:2::1".parse().unwrap(), "2001:db8:1:2:ffff::9".parse().unwrap());
        assert_eq!(counted_as(a), counted_as(b));
        assert_ne!(counted_as(a), counted_as("2001:db8:1:3::1".parse().unwrap()));
        assert_eq!(counted_as("::ffff:10.0.0.1".parse().unwrap()), counted_as("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn messages_show_only_the_start_of_foreign_text() {
        assert_eq!(clip("a\nb"), "a\u{fffd}b");
        assert_eq!(clip(&"x".repeat(200)).chars().count(), 81);
    }
}
