//! Tests of the texts of errors and of paths.

use super::*;

/// The test does not change the working directory, which all tests share.
#[test]
fn a_path_belongs_to_the_directory_in_which_it_was_resolved() {
    let directory = WorkingDirectory {
        path: PathBuf::from("/first"),
        is_reachable: true,
    };
    let file = directory.file("folder").join("dump.aof");
    assert_eq!(file.as_path(), Path::new("/first/folder/dump.aof"));
    assert_eq!(file.display().to_string(), "folder/dump.aof");
    assert_eq!(file.with_extension("rdb"), directory.file("folder/dump.rdb"));
    assert_eq!(file.directory().path(), Some(Path::new("/first")));
    assert_eq!(
        directory.file("/other/dump.rdb").as_path(),
        Path::new("/other/dump.rdb")
    );
    assert_eq!(directory.as_path(), Path::new("/first"));
    let here = std::env::current_dir().expect("there is one");
    assert_eq!(FixedPath::new("dump.rdb").as_path(), here.join("dump.rdb"));
}

/// As in Valkey, which uses relative names only. The test does not change the working directory.
#[test]
fn names_stay_relative_if_the_path_of_the_directory_does_not_lead_to_it() {
    for (path, shown) in [(None, None), (Some("/hidden"), Some(Path::new("/hidden")))] {
        let directory = WorkingDirectory::resolve(&mut || path.map(PathBuf::from), &|_| false);
        assert_eq!(directory.path(), shown);
        assert_eq!(directory.as_path(), Path::new("."));
        let file = directory.file("folder").join("dump.rdb");
        assert_eq!(file.as_path(), Path::new("folder/dump.rdb"));
        let other = Path::new("/other/dump.rdb");
        assert_eq!(directory.file(other).as_path(), other);
    }
}

#[test]
fn a_directory_that_changes_while_it_is_resolved_is_found() {
    let mut paths = ["/first", "/second"].into_iter().cycle().take(3).map(PathBuf::from);
    let is_current = |path: &Path| path == Path::new("/second");
    let mut reads = Vec::new();
    let mut read_path = || {
        // From then on it stays.
        let path = paths.next().unwrap_or_else(|| PathBuf::from("/second"));
        reads.push(path.clone());
        Some(path)
    };
    let directory = WorkingDirectory::resolve(&mut read_path, &is_current);
    assert_eq!(directory.as_path(), Path::new("/second"));
    assert!(reads.len() > 2, "{reads:?}");
}

#[test]
fn a_path_leads_to_a_directory_also_through_symbolic_links() {
    let folder = std::env::temp_dir().join(format!("weft-same-directory-{}", std::process::id()));
    let (real, other, link) = (folder.join("real"), folder.join("other"), folder.join("link"));
    for directory in [&real, &other] {
        fs::create_dir_all(directory).expect("creates");
    }
    std::os::unix::fs::symlink(&real, &link).expect("links");
    assert!(is_same_directory(&real, &real) && is_same_directory(&link, &real));
    assert!(!is_same_directory(&other, &real));
    let missing = folder.join("missing");
    assert!(!is_same_directory(&missing, &real));
    assert!(!is_same_directory(&missing, &missing));
    fs::remove_dir_all(&folder).expect("removes");
}

#[test]
fn a_file_is_replaced_wherever_it_lies() {
    let directory = std::env::temp_dir().join(format!("weft-replace-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("creates");
    let file = directory.join("file");
    for text in ["one", "two"] {
        replace_file(&file, text.as_bytes()).expect("is replaced");
        assert_eq!(fs::read_to_string(&file).expect("reads"), text);
        assert_eq!(
            fs::read_dir(&directory).expect("lists").count(),
            1,
            "nothing is left over"
        );
    }
    fs::remove_dir_all(&directory).expect("removes");
}

#[test]
fn texts_of_errors_are_those_of_the_c_library() {
    assert_eq!(errno_text(2), "No such file or directory");
    assert_eq!(errno_text(5), "Input/output error");
    assert_eq!(errno_text(28), "No space left on device");
    assert_eq!(error_text(&io::Error::other("of its own")), "of its own");
}
