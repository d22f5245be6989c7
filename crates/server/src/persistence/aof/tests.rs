//! Tests of what a start makes durable.

use super::*;

/// Clients read the data of each of them, so a power failure must not lose it.
#[test]
fn a_start_syncs_every_file_that_the_manifest_names() {
    let directory = std::env::temp_dir().join(format!("weft-aof-start-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("creates");
    let directory = FixedPath::new(directory);
    let filename = "aof".to_owned();
    let place = AofLocation { directory, filename };
    let mut manifest = Manifest::default();
    let names = [
        manifest.begin_base(&place.filename, true),
        manifest.begin_increment(&place.filename),
        manifest.begin_increment(&place.filename),
    ];
    for name in &names {
        std::fs::write(place.path(name), "").expect("writes");
    }
    place.sync_files(&manifest).expect("no manifest is stored yet");
    place.store(&mut manifest).expect("stores");
    place.sync_files(&manifest).expect("syncs");
    for name in &names {
        std::fs::remove_file(place.path(name)).expect("removes");
        assert!(place.sync_files(&manifest).is_err(), "{name} is not synced");
        std::fs::write(place.path(name), "").expect("writes");
    }
    std::fs::remove_dir_all(&place.directory).expect("removes");
}
