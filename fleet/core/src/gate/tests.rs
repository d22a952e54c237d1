use super::{
    ALPHA, BeforeAfter, Block, Failure, Faults, Halt, Installs, TOLERATED, by_counts, by_tests,
    generating, tolerated,
};

fn failures(told: &[(usize, &str)]) -> Vec<Failure> {
    told.iter()
        .map(|&(wave, fingerprint)| Failure { wave, fingerprint: fingerprint.to_owned() })
        .collect()
}

fn block(reached: (u32, u32), waiting: (u32, u32)) -> Block {
    Block {
        reached: reached.0,
        reached_failed: reached.1,
        waiting: waiting.0,
        waiting_failed: waiting.1,
    }
}

/// How probable each number of successes among draws without replacement is.
fn hypergeometric(reached: u64, waiting: u64, failed: u64) -> Vec<(u64, f64)> {
    let choose = |n: u64, k: u64| -> f64 {
        if k > n { 0.0 } else { (0..k).map(|i| (n - i) as f64 / (i + 1) as f64).product() }
    };
    let all = choose(reached + waiting, failed);
    (0..=failed.min(reached))
        .filter(|&chosen| failed - chosen <= waiting)
        .map(|chosen| (chosen, choose(reached, chosen) * choose(waiting, failed - chosen) / all))
        .collect()
}

fn is_near(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-9 * left.abs().max(right.abs()).max(1.0)
}

#[test]
fn the_first_failure_of_the_first_wave_halts() {
    assert_eq!(by_counts(&[]), None);
    let halt = by_counts(&failures(&[(0, "exit 1")]));
    assert_eq!(halt, Some(Halt::FirstWave { fingerprint: "exit 1".to_owned() }));
}

#[test]
fn a_later_wave_halts_at_its_second_failure() {
    assert_eq!(by_counts(&failures(&[(1, "disk full")])), None);
    let in_two_waves = failures(&[(1, "disk full"), (2, "exit 1"), (3, "no route")]);
    assert_eq!(by_counts(&in_two_waves), None);
    let halt = by_counts(&failures(&[(1, "disk full"), (2, "exit 1"), (2, "no route")]));
    assert_eq!(halt, Some(Halt::TwoInAWave { wave: 2 }));
    let halt = by_counts(&failures(&[(1, "exit 1"), (1, "exit 1")]));
    assert_eq!(halt, Some(Halt::TwoInAWave { wave: 1 }), "none of them was in an earlier wave");
}

#[test]
fn a_failure_that_was_seen_before_halts() {
    let halt = by_counts(&failures(&[(1, "exit 1"), (3, "exit 1")]));
    assert_eq!(halt, Some(Halt::SeenBefore { fingerprint: "exit 1".to_owned() }));
}

/// The law that bounds the error: the expectation of the e-value of a block is one, whatever it is
/// made of and however many fail, where the release changes nothing.
#[test]
fn a_block_is_worth_one_in_the_mean_where_the_release_is_good() {
    for (reached, waiting) in [(1, 1), (1, 9), (5, 5), (7, 3), (12, 40)] {
        for failed in 0..=(reached + waiting) {
            for odds in [1.1_f64, 2.0, 40.0, 700.0] {
                let mean: f64 = hypergeometric(reached, waiting, failed)
                    .into_iter()
                    .map(|(chosen, probability)| {
                        let chosen = u32::try_from(chosen).unwrap();
                        let all = u32::try_from(failed).unwrap();
                        let [reached, waiting] =
                            [reached, waiting].map(|count| u32::try_from(count).unwrap());
                        let block = block((reached, chosen), (waiting, all - chosen));
                        let logarithm = f64::from(chosen) * odds.ln() - generating(&block, odds);
                        probability * logarithm.exp()
                    })
                    .sum();
                assert!(is_near(mean, 1.0), "{mean} for {reached}, {waiting}, {failed}, {odds}");
            }
        }
    }
}

/// The same for installations that fail as often as is tolerated.
#[test]
fn installations_are_worth_one_in_the_mean_at_the_tolerated_rate() {
    for count in [1_u64, 10, 100] {
        let mut probability = (1.0 - TOLERATED).powi(i32::try_from(count).unwrap());
        let mut mean = 0.0;
        for failed in 0..=count {
            let installs = Installs { succeeded: count - failed, failed, tolerated: TOLERATED };
            mean += probability * installs.meter().evidence.exp();
            let left = (count - failed) as f64 * TOLERATED;
            probability *= left / ((failed + 1) as f64 * (1.0 - TOLERATED));
        }
        assert!(is_near(mean, 1.0), "{mean} for {count}");
    }
}

#[test]
fn an_outage_that_fails_everybody_of_a_zone_is_no_evidence() {
    let mut faults = Faults::default();
    faults.observe(&block((300, 300), (30_000, 30_000)));
    let meter = faults.meter();
    assert!(meter.evidence.abs() < 1e-6, "{meter:?}");
    assert!(is_near(meter.expected, 300.0), "{meter:?}");
}

#[test]
fn half_of_an_outage_among_the_reached_is_no_evidence() {
    let mut faults = Faults::default();
    faults.observe(&block((300, 150), (30_000, 15_000)));
    assert!(faults.meter().evidence < 0.0);
}

#[test]
fn more_failures_of_reached_agents_are_more_evidence_and_of_waiting_ones_less() {
    let evidence = |reached_failed, waiting_failed| {
        let mut faults = Faults::default();
        faults.observe(&block((100, reached_failed), (1_000, waiting_failed)));
        faults.meter().evidence
    };
    for failed in 2..20 {
        assert!(evidence(failed + 1, 3) > evidence(failed, 3), "{failed}");
        assert!(evidence(5, failed + 1) < evidence(5, failed), "{failed}");
    }
}

#[test]
fn a_block_without_one_of_the_groups_says_nothing() {
    let mut faults = Faults::default();
    for nothing in [block((10, 3), (0, 0)), block((0, 0), (10, 3)), block((10, 0), (10, 0))] {
        faults.observe(&nothing);
    }
    assert!(is_near(faults.meter().evidence, 0.0));
}

#[test]
fn a_block_with_more_failures_than_agents_says_nothing() {
    let mut faults = Faults::default();
    faults.observe(&block((1, u32::MAX), (u32::MAX, 2)));
    faults.observe(&block((2, 1), (1, 5)));
    assert!(is_near(faults.meter().evidence, 0.0));
}

#[test]
fn the_order_of_blocks_changes_nothing() {
    let blocks = [block((40, 3), (900, 1)), block((9, 0), (90, 2)), block((300, 9), (60, 1))];
    let evidence = |order: [usize; 3]| {
        let mut faults = Faults::default();
        for at in order {
            faults.observe(&blocks[at]);
        }
        faults.meter().evidence
    };
    assert!(is_near(evidence([0, 1, 2]), evidence([2, 0, 1])));
}

#[test]
fn agents_that_fail_after_their_order_and_not_before_halt() {
    let halts = |after, before| BeforeAfter { after, before }.meter().is_over();
    assert!(!halts(5, 0));
    assert!(halts(14, 0));
    assert!(!halts(20, 20));
    assert!(!halts(0, 50));
}

#[test]
fn the_test_that_reached_its_limit_is_named() {
    let good = Installs { succeeded: 990, failed: 10, tolerated: TOLERATED };
    let (faults, own) = (Faults::default(), BeforeAfter::default());
    assert_eq!(by_tests(&good, &faults, &own), None);
    let bad = Installs { succeeded: 900, failed: 100, tolerated: TOLERATED };
    let Some(Halt::Installs(meter)) = by_tests(&bad, &faults, &own) else { panic!("no halt") };
    assert_eq!(meter.failed, 100);
    assert!(is_near(meter.expected, 20.0));
    assert!(is_near(meter.limit, -(0.8 * ALPHA).ln()));
}

#[test]
fn a_plugin_that_always_failed_often_is_tolerated_more_and_a_short_history_says_little() {
    assert!(is_near(tolerated(0, 0), TOLERATED));
    assert!(is_near(tolerated(100_000, 0), TOLERATED));
    assert!(tolerated(900, 100) > 0.09 && tolerated(900, 100) < 0.1);
    assert!(tolerated(0, 1) < 0.03);
}
