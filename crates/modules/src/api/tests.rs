//! Tests of the table of functions against the header for authors of modules.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::strings::StreamIdStruct;
use super::{SUBJECTS, command_info, find};
use crate::module::types::TypeMethods;
use crate::objects::reply_receiver::ReplyHandlers;

fn header() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include/weftmodule.h")
}

/// The functions that the header of Redis has under other names.
const NAMES_OF_REDIS: [&str; 1] = ["DefragRedisModuleString"];

/// Returns the names in a list of the header.
fn listed(list: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(header()).expect("the header exists");
    let start = format!("#define {list}(X) \\\n");
    let lines = text.split_once(&start).expect("the header has the list").1.lines();
    // The list ends with the first line that the next one does not continue.
    let mut is_last = false;
    let in_list = lines.take_while(|line| !std::mem::replace(&mut is_last, !line.ends_with('\\')));
    in_list
        .filter_map(|line| line.trim().strip_prefix("X("))
        .filter_map(|entry| entry.split(", ").nth(1))
        .map(|name| {
            name.trim_end_matches(',')
                .trim_end_matches(" \\")
                .trim_end_matches(',')
                .to_owned()
        })
        .collect()
}

#[test]
fn the_header_and_the_table_have_the_same_functions() {
    let functions = listed("WEFTMODULE_FUNCTIONS");
    assert_eq!(functions.len(), 375, "the functions of Valkey 9.1");
    let all: Vec<&str> = SUBJECTS
        .iter()
        .flat_map(|list| list.iter())
        .map(|(name, _)| *name)
        .collect();
    let names: BTreeSet<String> = all.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(names.len(), all.len(), "a function is in two lists");
    let missing: Vec<&String> = functions.difference(&names).collect();
    assert!(missing.is_empty(), "functions that are not in the table: {missing:?}");
    let unknown: Vec<&String> = names.difference(&functions).collect();
    assert_eq!(unknown, NAMES_OF_REDIS, "functions that are not in the header");
}

#[test]
fn functions_are_found_by_both_prefixes() {
    for prefix in ["ValkeyModule_", "RedisModule_"] {
        assert!(find(&format!("{prefix}CreateCommand")).is_some());
        assert!(find(&format!("{prefix}ReplySetPushLength")).is_none());
    }
    assert!(find("CreateCommand").is_none());
    for name in listed("WEFTMODULE_EXTRA_FUNCTIONS") {
        assert!(find(&format!("WeftModule_{name}")).is_some(), "{name}");
        assert!(find(&format!("ValkeyModule_{name}")).is_none(), "{name}");
    }
}

/// Compiles a program, and fails with the messages of the compiler.
fn compile(compiler: &str, standard: &str, name: &str, source: &str) {
    let directory = std::env::temp_dir().join(format!("weft-header-test-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("makes a directory");
    let file = directory.join(name);
    std::fs::write(&file, source).expect("writes the program");
    let output = Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
        .arg(header().parent().expect("a directory"))
        .arg(&file)
        .output()
        .expect("starts the compiler");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} {standard}: {messages}");
}

#[test]
fn the_header_compiles_without_warnings() {
    let module = "#include \"weftmodule.h\"\n\
        int ValkeyModule_OnLoad(ValkeyModuleCtx *ctx, ValkeyModuleString **, int) {\n\
        ValkeyModuleEvent event = ValkeyModuleEvent_Key;\n\
        WeftModule_Init(ctx);\n\
        ValkeyModule_Log(ctx, VALKEYMODULE_LOGLEVEL_NOTICE, \"%d\", (int)event.id);\n\
        return ValkeyModule_Init(ctx, \"name\", 1, VALKEYMODULE_APIVER_1);\n}\n";
    let named = module.replace("**,", "**words,").replace(", int)", ", int count)");
    let c = named.replace("{\n", "{\n(void)words; (void)count;\n");
    compile("cc", "-std=c11", "module.c", &c);
    for standard in ["-std=c++11", "-std=c++20"] {
        let cpp = format!(
            "extern \"C\" int ValkeyModule_OnLoad(struct ValkeyModuleCtx *, struct ValkeyModuleString **, int);\n{module}"
        );
        compile("c++", standard, "module.cc", &cpp);
    }
}

#[test]
fn structures_have_the_layout_of_the_header() {
    let others = [
        ("ValkeyModuleStreamID", size_of::<StreamIdStruct>(), "seq", 8),
        (
            "ValkeyModuleTypeMethods",
            size_of::<TypeMethods>(),
            "aux_save2",
            size_of::<TypeMethods>() - 8,
        ),
        (
            "ValkeyModuleReplyHandlers",
            size_of::<ReplyHandlers>(),
            "onRespAvailable",
            size_of::<ReplyHandlers>() - 8,
        ),
    ];
    let mut program = "#include \"weftmodule.h\"\n".to_owned();
    for (name, size, field, offset) in command_info::LAYOUTS.iter().chain(&others) {
        program.push_str(&format!(
            "_Static_assert(sizeof({name}) == {size}, \"{name}\");\n\
             _Static_assert(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");\n"
        ));
    }
    compile("cc", "-std=c11", "layout.c", &program);
}
