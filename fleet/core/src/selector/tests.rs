use super::*;

fn labels(operator: &[(&str, &str)], own: &[(&str, &str)]) -> Labels {
    let map = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    Labels { operator: map(operator), token: map(&[("zone", "token-zone")]), own: map(own) }
}

#[track_caller]
fn check(text: &str, expected: bool) {
    let labels = labels(&[("env", "prod"), ("tier", "web front")], &[("rack", "r7")]);
    let selector = Selector::parse(text).expect("it parses");
    assert_eq!(selector.selects("a-1", &labels, OwnLabels::Ignored), expected, "{text}");
}

#[test]
fn terms_select_by_labels() {
    for (text, expected) in [
        ("all", true),
        ("not all", false),
        ("env = prod", true),
        ("env=prod", true),
        ("env != prod", false),
        ("absent != prod", true),
        ("env in (test, prod)", true),
        ("env in (test)", false),
        ("absent in (prod)", false),
        ("env exists", true),
        ("absent exists", false),
        ("tier = \"web front\"", true),
        ("zone = token-zone", true),
        ("percent = 5", false),
    ] {
        check(text, expected);
    }
}

#[test]
fn and_binds_closer_than_or() {
    check("all or all and not all", true);
    check("(all or all) and not all", false);
    check("not env = prod or env = prod", true);
    check("not (env = prod or env = test)", false);
}

#[test]
fn an_operators_label_hides_the_tokens() {
    let mut labels = labels(&[("zone", "eu")], &[]);
    let selector = Selector::parse("zone = eu").expect("it parses");
    assert!(selector.selects("a", &labels, OwnLabels::Ignored));
    labels.operator.clear();
    assert!(!selector.selects("a", &labels, OwnLabels::Ignored));
}

#[test]
fn own_labels_select_nothing_unless_trusted_not_even_by_their_absence() {
    let labels = labels(&[], &[("rack", "r7")]);
    for text in ["self.rack = r7", "not self.rack = r8", "all or self.rack exists", "self.x != y"] {
        let selector = Selector::parse(text).expect("it parses");
        assert!(!selector.selects("a", &labels, OwnLabels::Ignored), "{text}");
        assert!(selector.selects("a", &labels, OwnLabels::Trusted), "{text}");
    }
    // A label of that name without the prefix is the operator's, and he gave none.
    let rack = Selector::parse("rack = r7").expect("it parses");
    assert!(!rack.selects("a", &labels, OwnLabels::Trusted));
}

#[test]
fn a_percentage_grows_without_exchanging_its_members() {
    let labels = Labels::default();
    let chosen = |percent: &str, salt: &str| -> Vec<usize> {
        let selector = Selector::parse(&format!("percent({percent}, {salt})")).expect("it parses");
        (0..10_000)
            .filter(|n| selector.selects(&format!("a-{n}"), &labels, OwnLabels::Ignored))
            .collect()
    };
    assert_eq!(chosen("0", "s").len(), 0);
    assert_eq!(chosen("100", "s").len(), 10_000);
    let (ten, twenty) = (chosen("10", "s"), chosen("20", "s"));
    assert!(ten.iter().all(|n| twenty.contains(n)));
    // Five standard deviations of a fair draw on each side.
    assert!((850..=1150).contains(&ten.len()), "{}", ten.len());
    // Another salt chooses others: a tenth of a tenth is in both.
    let other = chosen("10", "t");
    let both = ten.iter().filter(|n| other.contains(n)).count();
    assert!((50..=150).contains(&both), "{both}");
    assert!((1..=60).contains(&chosen("0.25", "s").len()));
}

#[test]
fn what_does_not_parse_is_named_with_its_place() {
    for (text, column, problem) in [
        ("", 1, "the key of a label"),
        ("env =", 6, "a value is expected"),
        ("env prod", 5, "`=`, `!=`, `in (…)` or `exists`"),
        ("env = prod zone = eu", 12, "`and`, `or` or the end"),
        ("env = \"prod", 7, "never closed"),
        ("env = pröd", 9, "stands for nothing"),
        ("env in prod", 8, "`(` is expected"),
        ("(env = prod", 12, "`)` is expected"),
        ("percent(101, s)", 9, "from 0 to 100"),
        ("percent(1.234, s)", 9, "two decimals"),
        ("percent(-1, s)", 9, "from 0 to 100"),
        ("in = x", 1, "the key of a label"),
    ] {
        let error = Selector::parse(text).expect_err(text);
        assert_eq!(error.column, column, "{text}: {error}");
        assert!(error.problem.contains(problem), "{text}: {error}");
    }
    assert!(Selector::parse(&"(".repeat(2000)).is_err());
    assert!(Selector::parse(&"not ".repeat(1000)).is_err());
    assert!(Selector::parse(&"a".repeat(TEXT_BYTES + 1)).is_err());
}

#[test]
fn a_selector_says_whether_it_is_about_everything_and_whether_it_has_a_percentage() {
    for (text, is_all, has_percentage) in [
        ("all", true, false),
        (" all ", true, false),
        ("all or env = prod", false, false),
        ("env = prod", false, false),
        ("percent(10, spring)", false, true),
        ("env = prod and not (zone = a or percent(10, spring))", false, true),
        ("percent = 5", false, false),
    ] {
        let selector = Selector::parse(text).expect("it parses");
        assert_eq!(selector.is_all(), is_all, "{text}");
        assert_eq!(selector.names_percentages(), has_percentage, "{text}");
    }
}

#[test]
fn what_is_within_a_scope_selects_nothing_beyond_it() {
    let texts = [
        "all",
        "not all",
        "env = prod",
        "env != prod",
        "env in (prod, test)",
        "env in (prod)",
        "env exists",
        "not env exists",
        "env = prod and zone = a",
        "zone = a and (env = prod or env = test)",
        "env = prod or zone = a",
        "zone in (a, b) and env != test",
    ];
    let values = [None, Some("prod"), Some("test"), Some("a"), Some("b")];
    let mut within = 0;
    for (text, scope) in texts.iter().flat_map(|text| texts.map(|scope| (*text, scope))) {
        let [one, other] = [text, scope].map(|text| Selector::parse(text).expect("it parses"));
        if !one.is_within(&other) {
            continue;
        }
        within += 1;
        for (env, zone) in values.iter().flat_map(|env| values.map(|zone| (*env, zone))) {
            let mut found = Labels::default();
            found.operator.extend(env.map(|env| ("env".to_owned(), env.to_owned())));
            found.operator.extend(zone.map(|zone| ("zone".to_owned(), zone.to_owned())));
            let selects = |it: &Selector| it.selects("a-1", &found, OwnLabels::Ignored);
            assert!(!selects(&one) || selects(&other), "{text} within {scope}: {env:?} {zone:?}");
        }
    }
    // Each within itself and within `all`, and some within others.
    assert!(within > 2 * texts.len(), "{within}");
}

#[test]
fn a_part_more_stays_within_a_scope_and_a_part_less_does_not() {
    let is_within = |one: &str, scope: &str| {
        let [one, scope] = [one, scope].map(|text| Selector::parse(text).expect("it parses"));
        one.is_within(&scope)
    };
    assert!(is_within("env = prod and zone = a", "env = prod"));
    assert!(is_within("self.rack = r7 and env = prod", "env = prod"));
    assert!(is_within("env = prod", "env in (prod, test)"));
    assert!(!is_within("env = prod", "env = prod and zone = a"));
    assert!(!is_within("env = prod or zone = a", "env = prod"));
    assert!(!is_within("all", "env = prod"));
}
