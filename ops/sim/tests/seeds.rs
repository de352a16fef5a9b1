//! Hundreds of seeds on every run of the tests, and each one that ever failed.

use aqueduct_sim::Simulator;

/// Seeds that once broke a promise; what was wrong is in the history of this line.
const FAILED: &[u64] = &[328];

fn check(seeds: impl Iterator<Item = u64>) {
    let simulator = Simulator::default();
    for seed in seeds {
        if let Err(violation) = simulator.run(seed, None) {
            panic!("seed {seed}: {}; cargo run -p aqueduct-sim -- --replay {seed}", violation.0);
        }
    }
}

#[test]
fn no_seed_breaks_a_promise() {
    check(0..500);
}

#[test]
fn no_seed_that_failed_fails_again() {
    check(FAILED.iter().copied());
}

/// What a person replays is what failed.
#[test]
fn a_seed_is_the_same_run_every_time() {
    let simulator = Simulator::default();
    for seed in 0..20 {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let outcome = simulator.run(seed, Some(&mut first));
        assert_eq!(simulator.run(seed, Some(&mut second)), outcome);
        assert_eq!(first, second, "seed {seed}");
        assert!(!first.is_empty());
    }
}
