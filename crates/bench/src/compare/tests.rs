//! Options for the tests of all commands that start servers, and tests of what happens to results.

use super::*;
use crate::folder_for_tests::TestFolder;

impl CompareOptions {
    /// Creates options of servers that do not exist.
    pub fn for_tests(command_line: &str) -> CompareOptions {
        CompareOptions {
            weft: PathBuf::from("weft-server"),
            valkey: Some(PathBuf::from("valkey-server")),
            preload: None,
            valkey_tls: None,
            valkey_huge_pages: false,
            weft_args: Vec::new(),
            valkey_args: Vec::new(),
            sets: Vec::new(),
            rounds: None,
            window: None,
            warmup: None,
            data_size: DataSize::AsInSets,
            settle_interval: Duration::ZERO,
            workers: Vec::new(),
            connections: 3,
            server_cores: vec![0],
            client_cores: Vec::new(),
            client_threads: 1,
            out_dir: PathBuf::new(),
            command_line: command_line.to_string(),
            interruption: Interruption::default(),
        }
    }
}

#[test]
fn results_are_written_whatever_the_outcome_is() {
    let folder = TestFolder::create("finish");
    let results = |outcome| finish(&folder.0, "run", "| table |\n", &json!({ "a": 1 }), outcome);
    assert!(results(Ok(())).is_ok());
    for extension in ["md", "json"] {
        let path = folder.0.join("run").with_extension(extension);
        assert!(fs::read_to_string(&path).is_ok_and(|text| !text.is_empty()));
        fs::remove_file(&path).expect("removed");
    }
    assert!(matches!(results(Err(Error::Interrupted)), Err(Error::Interrupted)));
    assert!(folder.0.join("run.md").exists());
}

#[test]
fn the_error_of_the_run_counts_more_than_that_of_writing() {
    let written = || Err(Error::Server("writing".into()));
    assert!(matches!(
        first_error(Err(Error::Interrupted), written()),
        Err(Error::Interrupted)
    ));
    assert!(matches!(first_error(Ok(()), written()), Err(Error::Server(_))));
    assert!(first_error(Ok(()), Ok(())).is_ok());
    assert_eq!(early_end(&Ok(())), None);
    assert_eq!(early_end(&Err(Error::Interrupted)), Some("interrupted".to_string()));
}

#[test]
fn cores_are_named() {
    let mut options = CompareOptions::for_tests("weft-bench compare");
    assert_eq!(options.pinning_text(), "servers on CPU 0, client on any CPU");
    options.client_cores = vec![2, 3];
    assert_eq!(options.pinning_text(), "servers on CPU 0, client on CPU 2, 3");
}
