//! Policies from all layers, and texts that are not one.

use std::path::Path;

use super::*;
use crate::config::tests::Fixture;

fn name(text: &str) -> PluginName {
    text.parse().expect("a name")
}

#[test]
fn a_plugin_has_its_own_keys_and_the_defaults_for_the_others() {
    let file = r#"
        [plugins]
        health_failures = 5
        [plugins.defaults]
        user = "nobody"
        seccomp = "default"
        rlimits = { nofile = 100, core = 0 }
        [plugins.helper]
        user = 1234
        capabilities = ["cap_net_admin", "SYS_TIME"]
        read_write_paths = ["/srv"]
        rlimits.nofile = "unlimited"
        umask = "027"
        agent_socket = true
        stop_grace = "1m30s"
        [plugins."a.b"]
        required = true
    "#;
    let loaded = Fixture::new().file("guest-agent.toml", file).load().expect("good");
    assert_eq!(loaded.config.plugins.health_failures, 5);
    let helper = loaded.config.policies.of(&name("helper"));
    assert_eq!(helper.user, Some(Account::Id(1234)));
    assert_eq!(helper.capabilities, Some(Capabilities::Only(1 << 12 | 1 << 25)));
    assert_eq!(helper.read_write_paths.as_deref(), Some(&[PathBuf::from("/srv")][..]));
    assert_eq!(helper.read_only_paths, None);
    assert_eq!(helper.seccomp, Some(Seccomp::Default));
    assert_eq!(helper.umask.map(Umask::bits), Some(0o027));
    assert_eq!(helper.agent_socket, Some(true));
    assert_eq!(helper.stop_grace, Some(Duration::from_secs(90)));
    let limit = |policy: &Policy, name| policy.rlimits[&LimitName::parse(name).expect("known")];
    assert_eq!(limit(&helper, "nofile"), Limit::Unlimited);
    assert_eq!(limit(&helper, "core"), Limit::At(0));
    let other = loaded.config.policies.of(&name("other"));
    assert_eq!(other.user, Some(Account::Name("nobody".to_owned())));
    assert_eq!(limit(&other, "nofile"), Limit::At(100));
    assert_eq!(other.required, None);
    assert_eq!(loaded.config.policies.of(&name("a.b")).required, Some(true));
}

#[test]
fn later_layers_win_key_by_key_and_each_key_knows_its_layer() {
    let fixture = Fixture::new()
        .file("guest-agent.toml", "[plugins.p]\nuser = \"a\"\ngroup = \"a\"\numask = \"0\"\n")
        .file("conf.d/1.toml", "[plugins.p]\nuser = \"b\"\n[plugins.\"q.r\"]\nuser = \"c\"\n")
        .variable("GUEST_AGENT__PLUGINS__P__GROUP", "g")
        .variable("GUEST_AGENT__PLUGINS__MY_PLUGIN__RLIMITS__NOFILE", "64")
        .variable("GUEST_AGENT__PLUGINS__HEALTH_FAILURES", "7")
        .set("plugins.p.capabilities=[\"CAP_CHOWN\"]")
        .set("plugins.q.r.private_tmp=true")
        .set("plugins.q.r.rlimits.core=0")
        .set("plugins.q.r.stop_grace=5s")
        .set("plugins.defaults.user=0123")
        .set("plugins.health_timeout=1s");
    let loaded = fixture.load().expect("good");
    let policies = &loaded.config.policies;
    let p = policies.of(&name("p"));
    assert_eq!(p.user, Some(Account::Name("b".to_owned())));
    assert_eq!(p.group, Some(Account::Name("g".to_owned())));
    assert_eq!(p.capabilities, Some(Capabilities::Only(1)));
    assert_eq!(p.umask.map(Umask::bits), Some(0));
    let q = policies.of(&name("q.r"));
    assert_eq!((q.private_tmp, q.rlimits.len()), (Some(true), 1));
    assert_eq!(q.stop_grace, Some(Duration::from_secs(5)));
    assert_eq!(policies.of(&name("my_plugin")).rlimits.len(), 1);
    assert_eq!(policies.defaults.user, Some(Account::Id(123)), "digits are a number");
    assert_eq!(loaded.config.plugins.health_failures, 7);
    assert!(loaded.origins["plugins.p.user"].ends_with("conf.d/1.toml"));
    assert_eq!(
        loaded.origins["plugins.p.group"],
        "environment variable GUEST_AGENT__PLUGINS__P__GROUP"
    );
    assert_eq!(loaded.origins["plugins.\"q.r\".private_tmp"], "--set plugins.q.r.private_tmp");
    let shown: Vec<_> = crate::config::entries(&loaded);
    let entry = |key: &str| shown.iter().find(|entry| entry.key == key).expect("it is shown");
    assert_eq!(entry("plugins.\"q.r\".user").value, "\"c\"");
    assert_eq!(entry("plugins.\"q.r\".rlimits.core").value, "0");
    assert!(entry("plugins.p.user").origin.as_deref().is_some_and(|it| it.ends_with("1.toml")));
    assert_eq!(crate::config::value(&loaded.config, "plugins.p.umask").as_deref(), Some("0000"));
}

#[track_caller]
fn check(text: &str, key: &str, expected: &str) {
    let problem = Fixture::new().file("guest-agent.toml", text).problem();
    assert_eq!(problem.key, key, "{problem}");
    assert!(problem.origin.ends_with("guest-agent.toml"), "{problem}");
    assert!(problem.reason.contains(expected), "{problem}");
}

#[test]
fn a_mistake_in_a_policy_names_key_place_and_fix() {
    let of = |key: &str, value: &str| format!("[plugins.p]\n{key} = {value}\n");
    check(&of("usr", "\"a\""), "plugins.p.usr", "did you mean user?");
    check(
        &of("rlimits", "{ nofiles = 1 }"),
        "plugins.p.rlimits.nofiles",
        "did you mean rlimits.nofile?",
    );
    check(&of("rlimits", "3"), "plugins.p.rlimits", "a table is expected");
    check(&of("rlimits", "{ core = -1 }"), "plugins.p.rlimits.core", "unlimited");
    check(&of("rlimits", "{ core = \"much\" }"), "plugins.p.rlimits.core", "a whole number");
    // The number that means "no change" to the kernel: the plugin would stay root.
    check(&of("user", "4294967295"), "plugins.p.user", "use 0 to 4294967294");
    check(&of("user", "\"4294967295\""), "plugins.p.user", "use 0 to 4294967294");
    check(&of("user", "-1"), "plugins.p.user", "use 0 to");
    check(&of("user", "\"99999999999999999999\""), "plugins.p.user", "use 0 to");
    check(&of("user", "1.5"), "plugins.p.user", "a text is expected");
    check(&of("user", "\"\""), "plugins.p.user", "is not a name");
    check(&of("group", "\"a:b\""), "plugins.p.group", "is not a name");
    check(&of("capabilities", "[\"CAP_NET_ADMN\"]"), "plugins.p.capabilities", "CAP_NET_ADMIN?");
    check(&of("capabilities", "\"CAP_CHOWN\""), "plugins.p.capabilities", "a list of texts");
    check(&of("no_new_privileges", "\"yes\""), "plugins.p.no_new_privileges", "true or false");
    check(&of("read_only_paths", "[\"srv\"]"), "plugins.p.read_only_paths", "with a slash");
    check(&of("read_write_paths", "[\"/a/../etc\"]"), "plugins.p.read_write_paths", "..");
    check(&of("read_write_paths", "[\"/a\\u0000\"]"), "plugins.p.read_write_paths", "control");
    check(&of("seccomp", "\"strict\""), "plugins.p.seccomp", "\"default\" or \"none\"");
    check(&of("umask", "\"0999\""), "plugins.p.umask", "in octal");
    check(&of("umask", "18"), "plugins.p.umask", "a text is expected");
    check(&of("agent_socket", "1"), "plugins.p.agent_socket", "true or false");
    check(&of("stop_grace", "5"), "plugins.p.stop_grace", "a text is expected");
    check(&of("stop_grace", "\"5\""), "plugins.p.stop_grace", "the unit is missing");
    check(&of("stop_grace", "\"2h\""), "plugins.p.stop_grace", "at most 1h");
    check(&of("oom_score_adj", "1001"), "plugins.p.oom_score_adj", "-1000 to 1000");
    check("[plugins.\"../p\"]\nuser = 1\n", "plugins.../p.user", "the name of a plugin");
    check("[[plugins.p]]\nuser = 1\n", "plugins.p", "the key is unknown");
    let many = format!("[plugins.p]\nread_only_paths = {:?}\n", vec!["/a"; 65]);
    check(&many, "plugins.p.read_only_paths", "at most 64");
}

#[test]
fn a_mistake_on_the_command_line_is_named_as_well() {
    let problem = Fixture::new().set("plugins.p.privat_tmp=true").problem();
    assert_eq!(problem.origin, "--set plugins.p.privat_tmp");
    assert_eq!(problem.reason, "the key is unknown; did you mean private_tmp?");
    let problem = Fixture::new().set("plugins.p.required=yes").problem();
    assert_eq!(problem.reason, "true or false is expected");
    let problem = Fixture::new().variable("GUEST_AGENT__PLUGINS__HEALTH__FAILURES", "3").problem();
    assert_eq!(problem.key, "plugins.health.failures");
}

#[test]
fn policies_that_differ_are_among_the_differences() {
    let one = Fixture::new().set("plugins.p.user=a").load().expect("good").config;
    let other = Fixture::new().set("plugins.q.user=a").load().expect("good").config;
    let differing = crate::config::differences(&one, &other);
    assert_eq!(differing, ["plugins.p.user", "plugins.q.user"]);
    assert!(crate::config::differences(&one, &one).is_empty());
}

#[test]
fn a_key_overrides_its_default_even_with_nothing() {
    let text = "[plugins.defaults]\ncapabilities = []\nread_write_paths = [\"/srv\"]\n\
                [plugins.p]\ncapabilities = [\"all\"]\nread_write_paths = []\n";
    let loaded = Fixture::new().file("guest-agent.toml", text).load().expect("good");
    let p = loaded.config.policies.of(&name("p"));
    assert_eq!(p.capabilities, Some(Capabilities::All));
    assert_eq!(p.read_write_paths, Some(Vec::new()));
    let other = loaded.config.policies.of(&name("x")).read_write_paths.expect("the defaults'");
    assert_eq!(other, [Path::new("/srv")]);
}

#[test]
fn the_example_in_the_shipped_file_is_a_policy_with_every_key_but_the_group() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/guest-agent.toml");
    let text = std::fs::read_to_string(shipped).expect("the shipped file");
    let (_, example) = text.split_once("For example:\n").expect("it has an example");
    let lines = example.lines().map_while(|line| line.strip_prefix('#'));
    let example: Vec<&str> = lines.map(str::trim).collect();
    let loaded = Fixture::new().file("guest-agent.toml", &example.join("\n")).load().expect("good");
    let policies = loaded.config.policies;
    let (name, own) = policies.named.first_key_value().expect("a plugin's own");
    assert_eq!(name.as_str(), "metrics-helper");
    let Policy { group, no_new_privileges, .. } = policies.of(name);
    assert_eq!((group, no_new_privileges), (None, Some(true)));
    assert_eq!(own.rlimits.len(), 3);
    assert_eq!(own.values().len(), 14, "a key is missing in the example");
}

proptest::proptest! {
    #[test]
    fn law_whatever_is_set_is_taken_or_named_as_a_mistake(
        owner in "[a-zA-Z0-9._\"/-]{0,12}",
        key in "(user|group|seccomp|umask|capabilities|read_only_paths|oom_score_adj|required|\
                rlimits\\.(nofile|x)|rlimits|[a-z_]{0,8})",
        text in "(\\PC{0,20}|-?[0-9]{1,22}|\\[\"/?\\PC{0,8}\"\\]|true|unlimited|all)",
    ) {
        let set = format!("plugins.{owner}.{key}");
        let settings: Vec<_> = setting_of_text(&set, ".", &text, "a flag").into_iter().collect();
        let (count, mut problems) = (settings.len(), Vec::new());
        let (policies, origins) = fold(settings, &mut problems);
        proptest::prop_assert_eq!(count, 1);
        proptest::prop_assert_eq!(problems.len() + origins.len(), 1);
        proptest::prop_assert_eq!(policies.entries().len(), origins.len());
    }
}
