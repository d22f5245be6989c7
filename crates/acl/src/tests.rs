//! Tests of users and rules: descriptions that recreate the same user, changes that reach all clients, files, the log.

use weft_base::DbIndex;
use weft_config::command_line::CommandLine;

use super::file::parse_file;
use super::password::PasswordHash;
use super::rules::{RuleError, merge_selectors};
use super::*;

/// The commands of Valkey.
fn catalogue() -> &'static Arc<CommandCatalogue> {
    static CATALOGUE: std::sync::OnceLock<Arc<CommandCatalogue>> = std::sync::OnceLock::new();
    CATALOGUE.get_or_init(|| Arc::new(CommandCatalogue::of_table([], 0, &[])))
}

fn selector_defaults() -> SelectorDefaults<'static> {
    SelectorDefaults {
        catalogue: catalogue(),
        all_channels: false,
    }
}

fn user_of(rules: &[&str]) -> Result<UserRules, RuleError> {
    let mut user = UserRules::new(selector_defaults());
    for rule in rules {
        user.apply(rule.as_bytes(), selector_defaults())?;
    }
    Ok(user)
}

fn user(rules: &str) -> UserRules {
    let rules = merge_selectors(&words(rules)).expect("closed selectors");
    let rules: Vec<&str> = rules
        .iter()
        .map(|rule| std::str::from_utf8(rule).expect("text"))
        .collect();
    user_of(&rules).unwrap_or_else(|error| panic!("{rules:?}: {error:?}"))
}

fn words(text: &str) -> Vec<&str> {
    text.split(' ').filter(|word| !word.is_empty()).collect()
}

fn described(user: &UserRules) -> String {
    String::from_utf8_lossy(&user.describe()).into_owned()
}

/// The permissions that a test requires.
struct TestPermissions<'a> {
    command: CommandId,
    first: Option<&'a [u8]>,
    databases: &'a [usize],
    all_databases: Option<usize>,
    keys: &'a [(KeyAccess, &'a [u8])],
    channels: &'a [(ChannelUse, &'a [u8])],
}

impl AccessRequest for TestPermissions<'_> {
    fn command(&self) -> CommandId {
        self.command
    }

    fn is_always_allowed(&self) -> bool {
        false
    }

    fn first_arg(&self) -> Option<&[u8]> {
        self.first
    }

    fn all_databases(&self) -> Option<usize> {
        self.all_databases
    }

    fn each_database(&self, visit: &mut dyn FnMut(usize, DbIndex)) {
        for (argument, database) in self.databases.iter().enumerate() {
            visit(argument, DbIndex::new(*database));
        }
    }

    fn each_key(&self, visit: &mut dyn FnMut(usize, KeyAccess, &[u8])) {
        for (argument, (access, key)) in (1..).zip(self.keys) {
            visit(argument, *access, key);
        }
    }

    fn each_channel(&self, visit: &mut dyn FnMut(usize, ChannelUse, &[u8])) {
        for (argument, (usage, channel)) in (1..).zip(self.channels) {
            visit(argument, *usage, channel);
        }
    }
}

fn command(name: &str) -> TestPermissions<'static> {
    TestPermissions {
        command: catalogue().find(name.as_bytes()).expect("a command"),
        first: None,
        databases: &[],
        all_databases: None,
        keys: &[],
        channels: &[],
    }
}

#[test]
fn a_later_rule_replaces_earlier_rules_about_the_same_command() {
    let cases = [
        ("", "off resetchannels -@all"),
        ("on nopass +@all ~* &*", "on nopass ~* &* +@all"),
        ("+@all -get +get", "off resetchannels +@all +get"),
        ("+config|get +config|set -config", "off resetchannels -@all -config"),
        ("+config -config|get", "off resetchannels -@all +config -config|get"),
        ("+select|0 +select|1 -select", "off resetchannels -@all -select"),
        ("+get +getdel -get", "off resetchannels -@all +getdel -get"),
        ("+@read -@write +@read", "off resetchannels -@all -@write +@read"),
        ("~a %R~b ~a %W~b", "off ~a ~b resetchannels -@all"),
        ("%R~a %W~c", "off %R~a %W~c resetchannels -@all"),
        ("&a &b &a", "off resetchannels &a &b -@all"),
        ("db=3,1 ", "off resetchannels db=1,3 -@all"),
        ("db=1 resetdbs", "off resetchannels resetdbs -@all"),
        ("db=1 alldbs", "off resetchannels -@all"),
        ("(+get ~a) on", "on resetchannels -@all (~a resetchannels -@all +get)"),
        ("(+get ~a) clearselectors", "off resetchannels -@all"),
        ("on nopass ~* +@all (+get) reset", "off resetchannels -@all"),
    ];
    for (rules, expected) in cases {
        assert_eq!(described(&user(rules)), expected, "{rules}");
    }
}

#[test]
fn invalid_rules_change_nothing_and_report_the_reason() {
    let cases = [
        ("nosuch", RuleError::Syntax),
        ("%~a", RuleError::Syntax),
        ("~a b", RuleError::Syntax),
        ("+nosuch", RuleError::UnknownCommand),
        ("-get|x", RuleError::UnknownCommand),
        ("+@nosuch", RuleError::UnknownCommand),
        ("+config|", RuleError::Syntax),
        ("+config|get|x", RuleError::FirstArgumentOfSubcommand),
        ("#abc", RuleError::InvalidPasswordHash),
        ("<nosuch", RuleError::NoSuchPassword),
        ("db=-1", RuleError::DatabaseOutOfRange),
        ("db=2147483648", RuleError::DatabaseOutOfRange),
        ("db=1,", RuleError::Syntax),
        ("(+nosuch)", RuleError::UnknownCommand),
        ("(on)", RuleError::Syntax),
    ];
    for (rule, expected) in cases {
        let mut changed = user("on ~k* +get");
        let before = changed.clone();
        assert_eq!(
            changed.apply(rule.as_bytes(), selector_defaults()),
            Err(expected),
            "{rule}"
        );
        assert_eq!(changed, before, "{rule}");
    }
    let mut all = user("allkeys allchannels");
    assert_eq!(
        all.apply(b"~a", selector_defaults()),
        Err(RuleError::KeyPatternAfterAllKeys)
    );
    assert_eq!(
        all.apply(b"&a", selector_defaults()),
        Err(RuleError::ChannelPatternAfterAllChannels)
    );
}

#[test]
fn a_description_recreates_the_same_user() {
    const RULES: &[&str] = &[
        "on",
        "off",
        "nopass",
        "resetpass",
        ">a",
        ">b",
        "<a",
        "~a",
        "%R~b",
        "%W~b",
        "~*",
        "resetkeys",
        "&a",
        "&b*",
        "&*",
        "resetchannels",
        "db=1",
        "db=0,2",
        "alldbs",
        "resetdbs",
        "+@all",
        "-@all",
        "+@read",
        "-@write",
        "+@dangerous",
        "-@dangerous",
        "+get",
        "-get",
        "+config",
        "-config",
        "+config|get",
        "-config|get",
        "+select|1",
        "+select",
        "-select",
        "(+get ~a)",
        "(%R~x &y db=3 -@all +@string)",
        "clearselectors",
    ];
    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..2000 {
        let mut one = UserRules::new(selector_defaults());
        for _ in 0..rng.usize(1..15) {
            // Some rules are refused, which must not matter.
            let _ = one.apply(RULES[rng.usize(0..RULES.len())].as_bytes(), selector_defaults());
        }
        let again = user(&described(&one));
        assert_eq!(again, one, "seed {seed}: {}", described(&one));
    }
}

#[test]
fn the_denial_of_the_selector_that_allows_most_is_reported() {
    let get = |key: &'static [u8]| {
        let mut wanted = command("get");
        wanted.databases = &[0];
        wanted.keys = Box::leak(Box::new([(KeyAccess::READ, key)]));
        wanted
    };
    let denied = |reason, argument| Err(Denial { reason, argument });
    let cases = [
        ("+get ~a", Ok(())),
        ("+get ~b (+get %R~a)", Ok(())),
        ("+get %W~a", denied(DenialReason::Key, 1)),
        ("-@all ~*", denied(DenialReason::Command, 0)),
        ("db=1 +@all ~*", denied(DenialReason::Database, 0)),
        ("db=1 +@all ~* (-@all)", denied(DenialReason::Command, 0)),
        ("-@all (db=1 +@all ~*)", denied(DenialReason::Command, 0)),
        ("+get ~b (db=1 +@all ~*) (-@all)", denied(DenialReason::Key, 1)),
    ];
    for (rules, expected) in cases {
        assert_eq!(user(rules).check(&get(b"a")), expected, "{rules}");
    }
}

#[test]
fn a_command_on_all_databases_needs_the_rule_for_all_of_them_or_a_list_of_them() {
    let mut flush = command("flushall");
    (flush.databases, flush.all_databases) = (&[0], Some(3));
    let denied = Err(Denial {
        reason: DenialReason::Database,
        argument: 0,
    });
    let cases = [
        ("alldbs", Ok(())),
        ("db=0,1,2", Ok(())),
        ("db=2,7,1,0", Ok(())),
        ("db=0,1", denied),
        ("db=1,2,3", denied),
        ("resetdbs", denied),
        ("db=0,1 (db=0,1,2 +@all)", Ok(())),
        ("db=0,1 (db=2 +@all)", denied),
    ];
    for (rules, expected) in cases {
        let user = user(&format!("+@all {rules}"));
        assert_eq!(user.check(&flush), expected, "{rules}");
    }
}

#[test]
fn commands_are_allowed_one_by_one_by_category_and_by_first_argument() {
    let allows = |rules: &str, wanted: &TestPermissions<'_>| user(rules).check(wanted).is_ok();
    assert!(allows("+config|get", &command("config|get")));
    assert!(!allows("+config|get", &command("config|set")));
    assert!(allows("+config", &command("config|set")));
    assert!(!allows("+@all -config", &command("config|set")));
    assert!(allows("+@string", &command("get")));
    assert!(!allows("+@string -@read", &command("get")));
    let select = |first: &'static [u8]| TestPermissions {
        first: Some(first),
        ..command("select")
    };
    assert!(allows("+select|0", &select(b"0")));
    assert!(!allows("+select|0", &select(b"1")));
    assert!(!allows("+select|0 -select", &select(b"0")));
    assert!(!allows("+select|0", &command("select")));
}

#[test]
fn channels_are_matched_and_patterns_of_channels_compared() {
    let allowed = user("&news.* &a");
    let cases: [(ChannelUse, &[u8], bool); 6] = [
        (ChannelUse::Name, b"news.x", true),
        (ChannelUse::Name, b"a", true),
        (ChannelUse::Name, b"b", false),
        (ChannelUse::Pattern, b"news.*", true),
        (ChannelUse::Pattern, b"news.x*", false),
        (ChannelUse::Pattern, b"*", false),
    ];
    for (usage, channel, expected) in cases {
        let name = channel.escape_ascii();
        assert_eq!(allowed.allows_channel(usage, channel), expected, "{name}");
        let wanted = TestPermissions {
            channels: &[(usage, channel)],
            ..command("subscribe")
        };
        let mut allowed = allowed.clone();
        assert_eq!(allowed.apply(b"+subscribe", selector_defaults()), Ok(()));
        assert_eq!(allowed.check(&wanted).is_ok(), expected, "{name}");
    }
    assert!(user("&*").allows_channel(ChannelUse::Pattern, b"anything*"));
}

#[test]
fn selectors_may_span_several_words_but_must_be_closed() {
    let merged = |words: &[&str]| merge_selectors(words);
    let texts = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    assert_eq!(
        merged(&["on", "(+get", "~a", "&b)", "off"]),
        Ok(texts(&["on", "(+get ~a &b)", "off"]))
    );
    assert_eq!(merged(&["(", "+get", ")"]), Ok(texts(&["( +get )"])));
    assert_eq!(merged(&["(+get)", ")"]), Ok(texts(&["(+get)", ")"])));
    assert_eq!(merged(&["on", "(+get", "~a"]), Err(rules::UnclosedSelector(1)));
    assert_eq!(merged(&[]), Ok(Vec::new()));
}

#[test]
fn patterns_in_selectors_keep_their_quotes() {
    for rules in [
        "(%R~\"cfg:'*'\" +get)",
        "(~\"it's\" +get)",
        "(~\"a'b\" ~\"c'd\" +get)",
        "(~\"\\xff*\" +get)",
    ] {
        let made = user(rules);
        let text = described(&made);
        let again = user(&text);
        assert_eq!(described(&again), text, "{rules}");
        assert_eq!(
            made.selectors()[0].describe(),
            again.selectors()[0].describe(),
            "{rules}"
        );
    }
}

#[test]
fn a_pattern_of_every_key_can_be_read_back_before_others() {
    let every_key_first = user("%RW~* ~b (%R~* %W~* ~@write)");
    let text = described(&every_key_first);
    assert!(text.contains(" %RW~* ~b "), "{text}");
    assert!(text.contains("(%RW~* ~@write "), "{text}");
    assert_eq!(described(&user(&text)), text);
    let every_key_last = described(&user("%R~ ~b %RW~*"));
    assert!(every_key_last.contains(" %R~ ~b ~* "), "{every_key_last}");
    assert_eq!(
        described(&user(&every_key_last)),
        every_key_last.replace(" %R~ ~b ~* ", " ~* ")
    );
    assert!(described(&user("%RW~*")).contains(" ~* "));
}

#[test]
fn only_an_identical_password_is_accepted() {
    let same: [&[u8]; 4] = [b"", b"a", b"secret", b"\0\xff\0"];
    for password in same {
        let mut one = user("on");
        assert_eq!(one.apply(&[b">", password].concat(), selector_defaults()), Ok(()));
        assert!(one.accepts_password(password), "{password:?}");
        assert!(!one.accepts_password(&[password, b"x"].concat()), "{password:?}");
        assert_eq!(one.apply(b"off", selector_defaults()), Ok(()));
        assert!(!one.accepts_password(password), "{password:?}");
    }
    assert!(!user("on").accepts_password(b""));
    assert!(user("on nopass").accepts_password(b"anything"));
    assert!(!user("nopass").accepts_password(b"anything"));
    let hash = PasswordHash::of(b"secret");
    assert_eq!(PasswordHash::parse(hash.digits().as_bytes()), Some(hash));
    assert_eq!(PasswordHash::parse(hash.digits().to_uppercase().as_bytes()), None);
}

#[test]
fn random_digits_have_the_requested_length_and_differ() {
    for count in [1, 2, 5, 64, 1024] {
        let digits = random_digits(count).expect("randomness");
        assert_eq!(digits.len(), count);
        assert!(digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digits}");
    }
    assert_ne!(random_digits(64), random_digits(64));
}

#[test]
fn logins_are_refreshed_after_changes_of_their_user() {
    let acl = Acl::new(catalogue().clone());
    let config = Config::defaults();
    let mut login = acl.new_login();
    assert!(login.is_unrestricted(acl.version()));
    acl.set_user(b"joe", &["on", "nopass"], &config).expect("rules");
    assert!(
        !login.is_unrestricted(acl.version()),
        "a change of any user is looked at"
    );
    assert!(login.refresh(&acl));
    assert!(login.is_unrestricted(acl.version()));

    let mut joe = acl.log_in(b"joe", b"x").expect("a login");
    assert!(!joe.is_unrestricted(acl.version()));
    acl.set_user(b"joe", &["+@all", "~*", "&*"], &config).expect("rules");
    assert!(joe.refresh(&acl));
    assert!(joe.is_unrestricted(acl.version()));
    assert!(acl.set_user(b"joe", &["-@all", "nosuch"], &config).is_err());
    assert!(
        joe.refresh(&acl) && joe.is_unrestricted(acl.version()),
        "all rules or none"
    );
    assert_eq!(acl.delete_users([&b"joe"[..], b"default", b"joe"].into_iter()).len(), 1);
    assert!(!joe.refresh(&acl));
    assert!(acl.log_in(b"joe", b"x").is_none());
    assert!(acl.log_in(b"default", b"x").is_some());
}

#[test]
fn requirepass_is_the_password_of_the_default_user() {
    let acl = Acl::new(catalogue().clone());
    let config = Config::defaults();
    assert!(acl.is_open() && acl.new_login().is_authenticated());
    acl.set_default_password(b"secret", &config);
    assert!(!acl.is_open() && !acl.new_login().is_authenticated());
    assert!(acl.log_in(b"default", b"wrong").is_none());
    assert!(acl.log_in(b"default", b"secret").is_some());
    acl.set_default_password(b"", &config);
    assert!(acl.is_open());
    acl.set_user(b"default", &["off"], &config).expect("a rule");
    assert!(!acl.is_open());
}

/// Returns a configuration whose users are in this file.
fn config_with_file(path: &std::path::Path) -> Config {
    let command_line = CommandLine {
        options: format!("aclfile {}\n", path.display()).into_bytes(),
        ..CommandLine::default()
    };
    Config::load(&command_line).unwrap_or_else(|error| panic!("{error}"))
}

/// Loads the users of a configuration, which must fail. Returns the advice.
fn advice_of_failed_load(lines: &str) -> String {
    let command_line = CommandLine {
        options: lines.into(),
        ..CommandLine::default()
    };
    let config = Config::load(&command_line).unwrap_or_else(|error| panic!("{error}"));
    let error = Acl::new(catalogue().clone()).load_at_start(&config);
    error.expect_err("the users are invalid").advice(&config)
}

#[test]
fn errors_of_a_start_name_the_line_and_what_would_be_valid() {
    let rule = advice_of_failed_load("user joe on +get\nuser ann +@nosuch\n");
    assert_eq!(rule, format!("This is the option --user. {ADVICE_FOR_RULES}"));
    let name = advice_of_failed_load("user \"a b\" on\n");
    assert!(
        name.starts_with("This is the option --user. A user's name contains no blanks"),
        "{name}"
    );
    let twice = advice_of_failed_load("aclfile f\nuser joe on\n");
    assert!(twice.starts_with("aclfile is 'f': a file with all users, "), "{twice}");
    assert!(
        twice.contains("the option --user") && twice.ends_with("It is set by the option --aclfile."),
        "{twice}"
    );
    let missing = advice_of_failed_load("aclfile /nonexistent/users\n");
    assert!(
        missing.starts_with("aclfile is '/nonexistent/users': a file that exists "),
        "{missing}"
    );
    assert!(
        missing.contains("it may be empty") && missing.contains("It is set by the option --aclfile."),
        "{missing}"
    );
}

/// ACL LOAD must not bring the users back that ACL SAVE, on another thread, is replacing in the file.
#[test]
fn users_are_not_read_from_a_file_that_is_being_written() {
    let path = std::env::temp_dir().join(format!("weft-users-{}.acl", std::process::id()));
    let config = config_with_file(&path);
    let acl = Acl::new(catalogue().clone());
    std::fs::write(&path, "user old on\n").expect("writes");
    std::thread::scope(|scope| {
        let writing = acl.file_changes.lock();
        let loading = scope.spawn(|| acl.load_file(&config));
        // A thread that does not wait has read the file by then.
        std::thread::sleep(std::time::Duration::from_millis(100));
        std::fs::write(&path, "user new on\n").expect("writes");
        drop(writing);
        assert!(loading.join().expect("it ends").is_ok());
    });
    assert!(acl.account(b"old").is_none() && acl.account(b"new").is_some());
    std::fs::remove_file(&path).expect("removes");
    let errors = acl.load_file(&config).expect_err("there is no file");
    assert!(errors.starts_with(b"Error loading ACLs, opening file '"));
    assert!(acl.account(b"new").is_some(), "the users stay");
}

#[test]
fn users_of_a_file_are_not_installed_after_others_were_saved() {
    let path = std::env::temp_dir().join(format!("weft-saved-users-{}.acl", std::process::id()));
    let config = config_with_file(&path);
    let acl = Acl::new(catalogue().clone());
    std::fs::write(&path, "user old on\n").expect("writes");
    let read = || acl.read_file_users(&config).unwrap_or_else(|_| panic!("reads"));
    let before_save = read();
    acl.set_user(b"new", &["on", "nopass"], &config).expect("rules");
    acl.write_file(&config).expect("writes");
    assert!(acl.install_file_users(before_save).is_none());
    assert!(acl.account(b"new").is_some(), "the saved user stays");
    let [first, second] = [read(), read()];
    let saving = acl.file_changes.lock();
    assert!(acl.install_file_users(first).is_none());
    drop(saving);
    assert!(acl.install_file_users(second).is_some());
    std::fs::remove_file(&path).expect("removes");
}

#[test]
fn a_file_replaces_all_users_or_none() {
    let acl = Acl::new(catalogue().clone());
    let config = Config::defaults();
    acl.set_user(b"old", &["on", "nopass"], &config).expect("rules");
    let mut old = acl.log_in(b"old", b"x").expect("a login");
    let kept = acl.account(DEFAULT_USER).expect("the default user");
    let users = parse_file(
        b"\n user a on +get (~k\t  +set)\r\nuser default off\n",
        b"f",
        selector_defaults(),
    );
    acl.replace_all(users.unwrap_or_else(|errors| panic!("{}", errors.escape_ascii())));
    assert!(!old.refresh(&acl));
    assert!(Arc::ptr_eq(
        &kept,
        &acl.account(DEFAULT_USER).expect("the default user")
    ));
    let lines: Vec<String> = acl
        .describe_users()
        .iter()
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    let expected = [
        "a on resetchannels -@all +get (~k resetchannels -@all +set)",
        "default off resetchannels -@all",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn all_errors_of_a_file_are_reported() {
    let text = b"user a on\nuser a off\nfoo\nuser\nuser b +nosuch foo bar ~a\nuser c (+get\n\nuser d\tx on\n";
    let errors = parse_file(text, b"users.acl", selector_defaults())
        .err()
        .unwrap_or_default();
    let expected = "WARNING: Duplicate user 'a' found on line 2. \
        users.acl:3 should start with user keyword followed by the username. \
        users.acl:4 should start with user keyword followed by the username. \
        users.acl:5: Error in applying operation '+nosuch': Unknown command or category name in ACL. \
        users.acl:5: Syntax error. \
        users.acl:6: Unmatched parenthesis in selector definition.\
        'users.acl:8: username 'd\tx' contains invalid characters. \
        WARNING: ACL errors detected, no change to the previously active ACL rules was performed";
    assert_eq!(String::from_utf8_lossy(&errors), expected);
}

#[test]
fn declarations_are_checked_before_the_start() {
    let check = |lines: &[&str]| {
        let lines: Vec<Vec<Vec<u8>>> = lines
            .iter()
            .map(|line| line.split(' ').map(|word| word.as_bytes().to_vec()).collect())
            .collect();
        let lines: Vec<&[Vec<u8>]> = lines.iter().map(Vec::as_slice).collect();
        check_declarations(&lines, catalogue(), false).map_err(|wrong| (wrong.line, wrong.reason))
    };
    let wrong = |line: usize, text: &str| Err((line, text.to_owned()));
    assert_eq!(check(&["a on +nosuch", "b (+get ~k )"]), Ok(()));
    assert_eq!(
        check(&["a on", "b foo"]),
        wrong(1, "Error in user declaration 'user': Syntax error")
    );
    assert_eq!(
        check(&["a on foo"]),
        wrong(0, "Error in user declaration 'a': Syntax error")
    );
    assert_eq!(
        check(&["a (+get"]),
        wrong(0, "Error in user declaration 'user': Wrong format")
    );
    let twice = "Error in user declaration 'a': Duplicate user found. A user can only be defined once in config files";
    assert_eq!(check(&["a on", "b on", "a off"]), wrong(2, twice));
}

#[test]
fn similar_refusals_within_a_minute_are_one_entry() {
    let refusal = |object: &str, reason| DeniedAccess {
        reason,
        context: DenialContext::TopLevel,
        object: object.into(),
        user: b"joe".to_vec(),
    };
    let mut log = AclLog::default();
    log.add(refusal("get", DenialReason::Command), b"one".to_vec(), 1000, 10);
    log.add(refusal("k", DenialReason::Key), b"two".to_vec(), 2000, 10);
    log.add(refusal("get", DenialReason::Command), b"three".to_vec(), 61_000, 10);
    log.add(refusal("get", DenialReason::Key), b"four".to_vec(), 61_000, 10);
    log.add(refusal("get", DenialReason::Command), b"five".to_vec(), 121_001, 10);
    let shown: Vec<(u64, u64, Vec<u8>)> = log
        .latest(10)
        .into_iter()
        .map(|entry| (entry.id, entry.count, entry.client))
        .collect();
    let expected = [
        (3, 1, b"five".to_vec()),
        (2, 1, b"four".to_vec()),
        (0, 2, b"three".to_vec()),
        (1, 1, b"two".to_vec()),
    ];
    assert_eq!(shown, expected);
    assert_eq!(log.latest(1).len(), 1);
    log.add(refusal("x", DenialReason::Key), Vec::new(), 121_002, 2);
    assert_eq!(log.latest(10).len(), 2);
    log.add(refusal("y", DenialReason::Key), Vec::new(), 121_003, 0);
    assert_eq!(log.latest(10).len(), 0);
}

/// A user written to a file must be read back as the same user, and no other.
#[test]
fn no_part_of_a_rule_can_begin_another_line() {
    for evil in [
        "\nuser evil on nopass ~* &* +@all",
        " ~*",
        "\t+@all",
        "\r+@all",
        "\x0b+@all",
        "\x01",
        "\x7f",
        "",
    ] {
        for begins in [
            "+select|1",
            "~key",
            "%R~key",
            "&channel",
            "+get|x",
            "(+get|x",
            "(~x) +@all +select|y",
            "(~key",
            "(+select|\"1\\n2\"",
        ] {
            let mut user = UserRules::new(selector_defaults());
            let closes = if begins.starts_with('(') { ")" } else { "" };
            let rule = format!("{begins}{evil}{closes}");
            if user.apply(rule.as_bytes(), selector_defaults()).is_err() {
                continue;
            }
            let line = format!("user name {}\n", described(&user));
            let users = parse_file(line.as_bytes(), b"users.acl", selector_defaults());
            let users = users.unwrap_or_else(|_| panic!("{rule:?} is not read back: {line:?}"));
            let acl = Acl::new(catalogue().clone());
            acl.replace_all(users);
            let described: Vec<String> = acl
                .describe_users()
                .iter()
                .map(|line| String::from_utf8_lossy(line).into_owned())
                .filter(|line| !line.starts_with("default "))
                .collect();
            assert_eq!(described, [line[5..].trim_end()], "{rule:?}");
        }
    }
    assert!(user_of(&["+select|1"]).is_ok());
    assert_eq!(user_of(&["+select|1\nuser evil on"]).err(), Some(RuleError::Syntax));
}

#[test]
fn prefixes_need_a_pattern_that_ends_with_a_star() {
    let user = user_of(&["~a:*", "%R~b*", "~c", "%W~d*e*"]).expect("rules");
    for (access, prefix, allowed) in [
        (KeyAccess::BOTH, "a:", true),
        (KeyAccess::BOTH, "a:x", true),
        (KeyAccess::BOTH, "a", false),
        (KeyAccess::READ, "b1", true),
        (KeyAccess::WRITE, "b1", false),
        (KeyAccess::empty(), "b1", true),
        (KeyAccess::READ, "c", false),
        (KeyAccess::WRITE, "d1e", true),
        (KeyAccess::WRITE, "d1", false),
    ] {
        assert_eq!(
            user.allows_keys_with_prefix(access, prefix.as_bytes()),
            allowed,
            "{prefix}"
        );
    }
    assert!(user.allows_key(KeyAccess::BOTH, b"c") && !user.allows_key(KeyAccess::WRITE, b"b"));
    let all = user_of(&["~*"]).expect("rules");
    assert!(all.allows_keys_with_prefix(KeyAccess::BOTH, b"") && all.allows_key(KeyAccess::BOTH, b""));
}

#[test]
fn what_is_attached_to_a_login_ends_with_it() {
    let acl = Acl::new(catalogue().clone());
    let config = Config::defaults();
    let user = acl.create_detached_user(b"module-user", &config);
    assert!(acl.account(b"module-user").is_none() && !user.rules().is_enabled());
    assert_eq!(acl.change_user(&user, &["on", "+@all", "~*", "&*"], &config), Ok(false));
    assert!(acl.change_user(&user, &["off", "nosuch"], &config).is_err() && user.rules().is_enabled());
    let attachment: LoginAttachment = Arc::new(());
    let mut login = acl.login_of(user.clone(), Some(attachment.clone()));
    assert!(login.is_unrestricted(acl.version()) && login.name() == b"module-user");
    let mut view = acl.new_login();
    view.share(&login);
    assert!(view.attachment().is_none() && view.is_unrestricted(acl.version()));
    assert_eq!(Arc::strong_count(&attachment), 2);
    acl.delete_detached_user(&user);
    assert!(!login.refresh(&acl));
    login = acl.new_login();
    assert_eq!(Arc::strong_count(&attachment), 1);
    assert!(login.attachment().is_none());
}
