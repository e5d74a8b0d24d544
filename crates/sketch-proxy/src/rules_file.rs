//! Rules as a file says them.
//!
//! ```toml
//! inputs = ["accept", "accept-language", "cookie"]   # request headers that pass and are sketched
//! non_inputs = ["user-agent"]                        # that pass and are declared to have no influence
//! stripped = ["server", "x-served-by"]               # response headers that do not pass
//! stripped_cookies = ["_ga*"]                        # cookies that do not pass; `*`: all whose names begin so
//! remembers_set_cookie = false
//!
//! [[path]]
//! prefix = "/img/"
//! way = "unverified"                                 # or "agreed": never fast, or "usual"
//! personal_too = false                               # whether requests with cookies may be fast here
//! ```

use http::HeaderName;
use serde::Deserialize;
use tidings_base::{Class, Error};
use tidings_sketch::http::{PathRule, Rules};
use tidings_sketch::sketcher::Way;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    inputs: Option<Vec<Spanned<String>>>,
    non_inputs: Option<Vec<Spanned<String>>>,
    stripped: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    stripped_cookies: Vec<Spanned<String>>,
    #[serde(default)]
    remembers_set_cookie: bool,
    #[serde(default, rename = "path")]
    paths: Vec<PathOf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PathOf {
    prefix: Spanned<String>,
    way: WayOf,
    #[serde(default)]
    personal_too: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WayOf {
    Usual,
    Agreed,
    Unverified,
}

/// What a file says, with the defaults where it says nothing; or where it is wrong, and how.
pub fn parse(name: &str, text: &str) -> Result<Rules, Error> {
    let bad = |at: Option<usize>, what: &str| {
        let line = at.map(|at| text[..at.min(text.len())].matches('\n').count() + 1);
        let place = line.map_or_else(|| name.to_owned(), |line| format!("{name}:{line}"));
        Error::new("sketch.bad_rules", Class::Invalid, format!("{place}: {what}"))
            .hint("docs/sketch.md shows what a file of rules may say.")
    };
    let file: File = toml::from_str(text).map_err(|error| bad(error.span().map(|span| span.start), error.message()))?;
    let default = Rules::default();
    let names = |given: Option<Vec<Spanned<String>>>, or: Vec<HeaderName>| match given {
        None => Ok(or),
        Some(given) => {
            given.into_iter().map(|name| header(&name).map_err(|what| bad(Some(name.span().start), &what))).collect()
        }
    };
    let paths = file.paths.into_iter().map(|path| {
        let way = match path.way {
            WayOf::Usual => Way::Usual,
            WayOf::Agreed => Way::Replicated,
            WayOf::Unverified => Way::One,
        };
        let prefix = parse_prefix(path.prefix.get_ref()).map_err(|what| bad(Some(path.prefix.span().start), &what));
        prefix.map(|prefix| PathRule { prefix, way, personal_too: path.personal_too })
    });
    let cookies = file.stripped_cookies.into_iter().map(|name| match is_cookie(name.get_ref()) {
        true => Ok(name.into_inner()),
        false => Err(bad(Some(name.span().start), "this is no name of a cookie")),
    });
    Ok(Rules {
        generation: 0,
        shared: false,
        inputs: names(file.inputs, default.inputs)?,
        non_inputs: names(file.non_inputs, default.non_inputs)?,
        stripped: names(file.stripped, default.stripped)?,
        stripped_cookies: cookies.collect::<Result<Vec<_>, Error>>()?,
        paths: paths.collect::<Result<Vec<_>, Error>>()?,
        remembers_set_cookie: file.remembers_set_cookie,
        mutant: None,
    })
}

/// The beginning of paths, if any path begins so.
pub fn parse_prefix(text: &str) -> Result<String, String> {
    match text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err("a prefix begins with /".to_owned()),
    }
}

/// A header's name, if a rule about it has an effect.
fn header(name: &Spanned<String>) -> Result<HeaderName, String> {
    let parsed: HeaderName =
        name.get_ref().parse().map_err(|_| format!("`{}` is no name of a header", name.get_ref()))?;
    match Rules::decides(&parsed) {
        true => Ok(parsed),
        false => Err(format!("`{parsed}` is the sketcher's own: no rule changes what becomes of it")),
    }
}

/// Whether a cookie may have this name, or one that begins so.
fn is_cookie(name: &str) -> bool {
    let begin = name.strip_suffix('*').unwrap_or(name);
    !name.is_empty() && begin.bytes().all(|byte| byte.is_ascii_graphic() && !b"=;,\"*".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says_is_what_holds() {
        let rules =
            parse("r.toml", "inputs = [\"Accept\"]\n[[path]]\nprefix = \"/img/\"\nway = \"unverified\"\n").unwrap();
        assert_eq!(rules.inputs, [http::header::ACCEPT]);
        assert_eq!(rules.non_inputs, Rules::default().non_inputs);
        assert_eq!(rules.paths, [PathRule { prefix: "/img/".into(), way: Way::One, personal_too: false }]);
        assert!(parse("r.toml", "").is_ok());
        let cookies = parse("r.toml", "stripped_cookies = [\"_ga*\", \"seen\"]").unwrap().stripped_cookies;
        assert_eq!(cookies, ["_ga*", "seen"]);
    }

    #[test]
    fn what_is_wrong_is_named_by_its_line() {
        for (text, line, what) in [
            ("inputs = [\n\"ok\",\n\"not ok\"]", 3, "no name of a header"),
            ("\ninputs = [\"range\"]", 2, "the sketcher's own"),
            ("\n\nimputs = []", 3, "unknown field"),
            ("[[path]]\nprefix = \"img\"\nway = \"agreed\"", 2, "begins with /"),
            ("[[path]]\nprefix = \"/\"\nway = \"fast\"", 3, "unknown variant"),
            ("stripped_cookies = [\"_ga*\",\n\"a=b\"]", 2, "no name of a cookie"),
            ("stripped_cookies = [\"a*b\"]", 1, "no name of a cookie"),
            ("inputs = [", 1, ""),
        ] {
            let error = parse("r.toml", text).unwrap_err();
            assert!(error.message.starts_with(&format!("r.toml:{line}: ")), "{text}: {error}");
            assert!(error.message.contains(what), "{text}: {error}");
        }
    }
}
