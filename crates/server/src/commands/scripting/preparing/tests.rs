//! Tests of running the code of libraries.

use super::*;

/// A payload may have very many libraries, and must not keep a thread to itself.
#[test]
fn the_libraries_of_a_payload_are_loaded_one_after_the_other() {
    let server = crate::start::create_idle_server(weft_config::Config::defaults());
    let library =
        |number| format!("#!lua name=l{number}\nredis.register_function('f{number}', function() end)").into_bytes();
    let codes: Vec<Vec<u8>> = (0..3).map(library).collect();
    let begin = |codes: &[Vec<u8>]| {
        let payload = functions::dump(codes, false);
        SourceLoad::new(&server, &LibrarySource::Payload(payload))
    };
    let mut load = begin(&codes);
    assert!(load.load_next(&server).is_none());
    assert!(load.load_next(&server).is_none());
    let libraries = load.load_next(&server).expect("these are all").expect("they load");
    let names: Vec<&[u8]> = libraries.iter().map(|library| &library.name[..]).collect();
    assert_eq!(names, [b"l0", b"l1", b"l2"]);
    let mut load = begin(&[codes[0].clone(), b"code".to_vec(), codes[1].clone()]);
    assert!(load.load_next(&server).is_none());
    let error = load.load_next(&server).expect("it has failed").unwrap_err();
    assert_eq!(error, b"ERR Missing library metadata");
    assert!(
        begin(&[])
            .load_next(&server)
            .expect("it is done")
            .expect("it loads")
            .is_empty()
    );
}
