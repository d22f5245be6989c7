//! The text of sections, and the fields of INFO.

use super::{InfoContext, ServerInfo};
use crate::module::Module;

fn context(wanted: Option<&[&str]>) -> InfoContext {
    let module = Module::new("m.so".to_owned());
    module.set_name("mod");
    let wanted = wanted.map(|names| names.iter().map(|name| name.as_bytes().to_vec()).collect());
    InfoContext::new(module, wanted)
}

#[test]
fn fields_have_the_name_of_the_module_and_dictionaries_are_one_line() {
    let info = context(None);
    assert!(!info.add_text_field(b"early", b"1"), "no section has begun");
    assert!(info.add_section(b"") && info.add_text_field(b"a:b", b"x\ny"));
    assert!(info.begin_dictionary(b"dict") && info.add_text_field(b"one", b"1") && info.add_text_field(b"two", b"2"));
    assert!(info.end_dictionary() && !info.end_dictionary());
    assert!(info.add_section(b"more") && info.begin_dictionary(b"open") && info.add_text_field(b"z", b"3"));
    let text = info.into_text();
    let expected = "# mod\r\nmod_a_b:x_y\r\nmod_dict:one=1,two=2\r\n\r\n# mod_more\r\nmod_open:z=3\r\n";
    assert_eq!(String::from_utf8_lossy(&text), expected);
}

#[test]
fn a_client_gets_the_sections_that_it_has_asked_for() {
    let sections = |wanted: &[&str]| {
        let info = context(Some(wanted));
        let added = [info.add_section(b"a"), info.add_section(b"b")];
        (added, String::from_utf8_lossy(&info.into_text()).into_owned())
    };
    assert_eq!(sections(&["mod_B"]), ([false, true], "# mod_b\r\n".to_owned()));
    assert_eq!(sections(&["mod"]).0, [true, true]);
    assert_eq!(sections(&["other"]), ([false, false], String::new()));
}

#[test]
fn fields_of_the_server_are_read_without_titles() {
    let info = ServerInfo::from_text(b"# Memory\r\nused:12\r\nname:a:b\r\n\r\nbroken\r\n");
    assert_eq!(info.field(b"used"), Some(&b"12"[..]));
    assert_eq!(info.terminated(b"name"), Some(&b"a:b\0"[..]));
    assert_eq!(info.field(b"broken"), None);
}
