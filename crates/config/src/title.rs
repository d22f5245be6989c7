//! Templates for the process title: text with `{variables}`.
/// Replaces each `{variable}` of `template` by the result of `value_of`, and `{{` by a brace, and trims blanks. Returns
/// `None` for an unknown variable or an unclosed brace.
pub fn expand_template(template: &[u8], value_of: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let mut title = Vec::new();
    let mut rest = template;
    while let Some(open) = rest.iter().position(|&byte| byte == b'{') {
        title.extend_from_slice(&rest[..open]);
        rest = &rest[open + 1..];
        if let Some(after) = rest.strip_prefix(b"{") {
            title.push(b'{');
            rest = after;
            continue;
        }
        let close = rest.iter().position(|&byte| byte == b'}')?;
        title.extend(value_of(&rest[..close])?);
        rest = &rest[close + 1..];
    }
    title.extend_from_slice(rest);
    let first = title.iter().position(|&byte| byte != b' ').unwrap_or(title.len());
    let end = title
        .iter()
        .rposition(|&byte| byte != b' ')
        .map_or(first, |last| last + 1);
    Some(title[first..end].to_vec())
}

/// Returns `true` if a template expands to a non-empty text even if all variables that may be empty are empty.
pub fn is_valid(template: &[u8]) -> bool {
    expand_template(template, |variable| match variable {
        b"title" | b"server-mode" | b"unixsocket" => Some(Vec::new()),
        b"listen-addr" | b"port" | b"tls-port" | b"config-file" => Some(b"-".to_vec()),
        _ => None,
    })
    .is_some_and(|title| !title.is_empty())
}
