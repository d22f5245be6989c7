//! Tests of the command that starts a server.

use super::*;

fn recipe(arguments: &str) -> ServerParameters {
    ServerParameters {
        program: PathBuf::from("/bin/server"),
        arguments: arguments.split_whitespace().map(str::to_string).collect(),
        preload: None,
        environment: &[],
        cores: Vec::new(),
        tls: None,
    }
}

#[test]
fn persistence_is_off_unless_the_arguments_set_it() {
    let cases = [
        (
            "--io-threads 1",
            "/bin/server --save \"\" --appendonly no --io-threads 1",
        ),
        ("--appendonly yes", "/bin/server --save \"\" --appendonly yes"),
        ("--save 60 1", "/bin/server --appendonly no --save 60 1"),
    ];
    for (arguments, text) in cases {
        assert_eq!(recipe(arguments).command_text(), text);
    }
}

#[test]
fn the_environment_is_part_of_the_command() {
    let recipe = ServerParameters {
        preload: Some(PathBuf::from("/lib/x.so")),
        environment: &[("MALLOC_CONF", "thp:always")],
        ..recipe("")
    };
    assert_eq!(
        recipe.command_text(),
        "LD_PRELOAD=/lib/x.so MALLOC_CONF=thp:always /bin/server --save \"\" --appendonly no"
    );
}
