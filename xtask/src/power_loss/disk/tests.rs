//! Tests of what a power loss leaves.

use super::*;

/// A disk with the directory `d`, and the bytes `abcdefgh` to write.
fn disk() -> Disk {
    let image = Image::from([("d".to_owned(), None)]);
    Disk::new(&image, Arc::new(b"abcdefgh".to_vec()))
}

fn open(file: u64, path: &str, is_created: bool) -> FileEvent {
    FileEvent::Open {
        file,
        path: path.to_owned(),
        is_created,
        is_truncated: false,
        is_directory: false,
    }
}

fn open_directory(file: u64, path: &str) -> FileEvent {
    FileEvent::Open {
        file,
        path: path.to_owned(),
        is_created: false,
        is_truncated: false,
        is_directory: true,
    }
}

fn write(file: u64, offset: u64, data: Range<usize>) -> FileEvent {
    FileEvent::Write { file, offset, data }
}

fn rename(from: &str, to: &str) -> FileEvent {
    FileEvent::Rename {
        from: from.to_owned(),
        to: to.to_owned(),
    }
}

fn apply(disk: &mut Disk, events: &[FileEvent]) {
    for event in events {
        disk.apply(event).expect("it fits");
    }
}

/// All images that many power losses leave.
fn images(disk: &Disk, data: DataFate, names: NameFate) -> Vec<Image> {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut all: Vec<Image> = (0..300)
        .map(|_| disk.lose_power(Fate { data, names }, &mut rng))
        .collect();
    all.sort();
    all.dedup();
    all
}

fn contents(images: &[Image], path: &str) -> Vec<Option<String>> {
    let text = |content: &Option<Vec<u8>>| String::from_utf8_lossy(content.as_deref().unwrap_or_default()).into_owned();
    let mut all: Vec<_> = images.iter().map(|image| image.get(path).map(text)).collect();
    all.sort();
    all.dedup();
    all
}

fn texts(list: &[&str]) -> Vec<Option<String>> {
    list.iter().map(|text| Some((*text).to_owned())).collect()
}

#[test]
fn a_sync_covers_what_was_written_before_it_began() {
    let mut disk = disk();
    let names = [open_directory(1, "d"), open(2, "d/f", true)];
    apply(&mut disk, &names);
    apply(
        &mut disk,
        &[
            FileEvent::SyncBegin { file: 1, sync: 10 },
            FileEvent::SyncEnd { sync: 10 },
        ],
    );
    apply(
        &mut disk,
        &[
            write(2, 0, 0..2),
            FileEvent::SyncBegin { file: 2, sync: 11 },
            write(2, 2, 2..4),
        ],
    );
    assert_eq!(
        contents(&images(&disk, DataFate::Lost, NameFate::Lost), "d/f"),
        texts(&[""])
    );
    apply(&mut disk, &[FileEvent::SyncEnd { sync: 11 }]);
    assert_eq!(
        contents(&images(&disk, DataFate::Lost, NameFate::Lost), "d/f"),
        texts(&["ab"])
    );
    assert_eq!(
        contents(&images(&disk, DataFate::Kept, NameFate::Lost), "d/f"),
        texts(&["abcd"])
    );
    let parts = contents(&images(&disk, DataFate::Prefix, NameFate::Lost), "d/f");
    assert_eq!(parts, texts(&["ab", "abc", "abcd"]));
    let zeros = contents(&images(&disk, DataFate::Zeros, NameFate::Lost), "d/f");
    assert_eq!(zeros, texts(&["ab", "ab\0", "ab\0\0", "abc", "abc\0", "abcd"]));
}

#[test]
fn a_name_is_durable_after_a_sync_of_its_directory() {
    let mut disk = disk();
    apply(&mut disk, &[open(2, "d/f", true), write(2, 0, 0..2)]);
    apply(
        &mut disk,
        &[
            FileEvent::SyncBegin { file: 2, sync: 11 },
            FileEvent::SyncEnd { sync: 11 },
        ],
    );
    assert_eq!(contents(&images(&disk, DataFate::Lost, NameFate::Lost), "d/f"), [None]);
    let either = contents(&images(&disk, DataFate::Lost, NameFate::Subset), "d/f");
    assert_eq!(either, [None, Some("ab".to_owned())]);
    // A sync of another directory does not help.
    apply(
        &mut disk,
        &[
            open_directory(3, "."),
            FileEvent::SyncBegin { file: 3, sync: 12 },
            FileEvent::SyncEnd { sync: 12 },
        ],
    );
    assert_eq!(contents(&images(&disk, DataFate::Lost, NameFate::Lost), "d/f"), [None]);
    apply(
        &mut disk,
        &[
            open_directory(4, "d"),
            FileEvent::SyncBegin { file: 4, sync: 13 },
            FileEvent::SyncEnd { sync: 13 },
        ],
    );
    assert_eq!(
        contents(&images(&disk, DataFate::Lost, NameFate::Lost), "d/f"),
        texts(&["ab"])
    );
}

#[test]
fn a_rename_happens_as_a_whole() {
    let mut disk = disk();
    apply(
        &mut disk,
        &[open_directory(1, "d"), open(2, "d/new", true), write(2, 0, 0..3)],
    );
    apply(&mut disk, &[open(3, "d/f", true), write(3, 0, 4..6)]);
    for (file, sync) in [(2, 10), (3, 11), (1, 12)] {
        apply(
            &mut disk,
            &[FileEvent::SyncBegin { file, sync }, FileEvent::SyncEnd { sync }],
        );
    }
    apply(&mut disk, &[rename("d/new", "d/f")]);
    let images = images(&disk, DataFate::Lost, NameFate::Subset);
    let found: Vec<_> = images
        .iter()
        .map(|image| (image.get("d/new").is_some(), image["d/f"].clone()))
        .collect();
    assert_eq!(found, [(false, Some(b"abc".to_vec())), (true, Some(b"ef".to_vec()))]);
}

#[test]
fn names_that_are_not_synced_may_be_there_in_any_combination() {
    let mut disk = disk();
    apply(&mut disk, &[open(2, "d/a", true), open(3, "d/b", true)]);
    let count = |names| images(&disk, DataFate::Lost, names).len();
    assert_eq!((count(NameFate::Lost), count(NameFate::Kept)), (1, 1));
    assert_eq!((count(NameFate::Prefix), count(NameFate::Subset)), (3, 4));
}
