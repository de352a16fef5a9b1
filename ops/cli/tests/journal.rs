//! A coordinator that is killed, at any moment: the next one goes on with what it had accepted,
//! and gives the same tokens.

mod binary;
mod caller;

use std::path::Path;

use aqueduct_core::journal::{Kept, Outcome};
use aqueduct_journal::{Journal, Options, Standing};
use binary::{Running, aqueduct, model, run, stderr, wait_for};
use caller::{answer, in_decode, in_prefill, tokens, uninterrupted, worker};

fn coordinator(workers: &[Running], data_dir: &Path) -> Running {
    let mut command = aqueduct();
    command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--data-dir"]);
    command.arg(data_dir).arg("--model").arg(model());
    for worker in workers {
        command.args(["--worker", worker.address("url")]);
    }
    let coordinator = Running::start(&mut command);
    wait_for("the workers", || {
        (coordinator.metric("workers_up") == workers.len() as f64).then_some(())
    });
    coordinator
}

/// What the last request of a journal has come to.
fn last(data_dir: &Path) -> Kept {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let journal = Journal::open(data_dir, Options::alone(), ()).unwrap();
        let mut standing = journal.standing();
        let leads = standing.wait_for(|standing| matches!(standing, Standing::Leads { .. }));
        drop(leads.await.unwrap());
        let last = journal.read(|state| state.iter().last().map(|(_, kept)| kept.clone()));
        last.await.unwrap().unwrap()
    })
}

#[test]
fn a_killed_coordinator_loses_nothing_that_it_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let workers = [worker(), worker()];
    let first = coordinator(&workers, folder.path());
    let url = |coordinator: &Running| format!("http://{}", coordinator.address("grpc"));
    let want = answer(&url(&first), |_| false, |_| {});
    assert!(want.len() > 20, "{want:?}");
    assert_eq!(first.terminate(), Some(0));
    assert_eq!(tokens(&last(folder.path())), want);

    for is_time in [in_prefill, in_decode] {
        let killed = coordinator(&workers, folder.path());
        // It could come back: what nobody can come back to does not go on.
        let told = uninterrupted(&url(&killed), is_time, |caller| {
            killed.signal("KILL");
            caller.kill().unwrap(); // it would look for this one for long
        });
        assert!(told.len() < want.len() && want.starts_with(&told), "{told:?}");
        drop(killed);
        let next = coordinator(&workers, folder.path());
        wait_for("the request", || (next.metric("num_requests_running") > 0.0).then_some(()));
        wait_for("its end", || (next.metric("num_requests_running") == 0.0).then_some(()));
        assert_eq!(next.terminate(), Some(0));
        let kept = last(folder.path());
        assert_eq!(tokens(&kept), want);
        assert_eq!(kept.ended.unwrap().outcome, Outcome::Finished);
    }

    let killed = coordinator(&workers, folder.path());
    answer(&url(&killed), in_prefill, |_| killed.signal("KILL"));
    drop(killed);
    assert_eq!(coordinator(&workers, folder.path()).terminate(), Some(0));
    assert_eq!(last(folder.path()).ended.unwrap().outcome, Outcome::Cancelled);
}

#[test]
fn a_journal_that_is_none_is_refused_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("journal.redb");
    std::fs::write(&file, "no journal").unwrap();
    let ports = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
    let model = model();
    let args = ["serve", "--model", model.to_str().unwrap(), "--data-dir"];
    let folder = folder.path().to_str().unwrap();
    let output = run([&args[..], &[folder], &ports].concat());
    assert!(stderr(&output).contains("the journal is corrupt"), "{}", stderr(&output));
    assert_ne!(output.status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(file).unwrap(), "no journal");
}
