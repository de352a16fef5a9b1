//! What was written is there, and what is there is what was written: anything else is refused.

use std::fs;
use std::path::Path;

use aqueduct_journal::{
    Cut, Entry, Frozen, Hard, Identity, Point, Saved, Store, StoreError, Write,
};
use tempfile::TempDir;

const FILE: &str = "journal.redb";

fn entry(index: u64, term: u64) -> Entry {
    Entry { index, term, data: vec![index as u8; 300] }
}

fn hard(term: u64, commit: u64) -> Hard {
    Hard { term, vote: 1, commit }
}

fn reopened(folder: &Path) -> Result<Saved, StoreError> {
    Store::open(folder, &Identity::alone()).map(|(_, saved)| saved)
}

fn is_refused(folder: &TempDir) -> bool {
    matches!(reopened(folder.path()), Err(StoreError::Corrupt(_)))
}

/// A journal of some entries and a snapshot.
fn written(folder: &Path) -> Saved {
    let (store, saved) = Store::open(folder, &Identity::alone()).unwrap();
    let birth = saved.birth;
    assert_eq!(saved, Saved { birth, is_newborn: true, ..Saved::default() });
    let entries = (1..=5).map(|index| entry(index, 1)).collect();
    store.write(&Write { hard: hard(1, 3), entries, ..Write::default() }).unwrap();
    let point = Point { index: 2, term: 1 };
    let frozen = Frozen { point, data: b"state".to_vec() };
    store
        .write(&Write {
            hard: hard(2, 3),
            frozen: Some(frozen.clone()),
            cut: Some(Cut { point, all: false }),
            entries: vec![entry(4, 2)],
            is_grown: true,
        })
        .unwrap();
    Saved {
        group: 0,
        birth,
        is_newborn: false,
        hard: hard(2, 3),
        cut: point,
        frozen: Some(frozen),
        entries: vec![entry(3, 1), entry(4, 2)],
    }
}

#[test]
fn what_was_written_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let want = written(folder.path());
    assert_eq!(reopened(folder.path()).unwrap(), want);
    let (store, _) = Store::open(folder.path(), &Identity::alone()).unwrap();
    let point = Point { index: 9, term: 2 };
    let frozen = Some(Frozen { point, data: Vec::new() });
    let cut = Some(Cut { point, all: true });
    let entries = vec![entry(10, 2)];
    let write = Write { frozen: frozen.clone(), cut, entries, ..Write::default() };
    store.write(&Write { hard: hard(2, 9), ..write }).unwrap();
    drop(store);
    let entries = vec![entry(10, 2)];
    let want = Saved { hard: hard(2, 9), cut: point, frozen, entries, ..want };
    assert_eq!(reopened(folder.path()).unwrap(), want);
}

#[test]
fn nobody_else_may_open_it() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path());
    let other = Identity { member: 2, members: vec![1, 2, 3], group: 0, named: 0 };
    let refused = Store::open(folder.path(), &other).unwrap_err();
    assert_eq!(refused.to_string(), "the journal is of member 1 of 1, not of member 2 of 3");
    // Its addresses may change, but not what it is called.
    let named = |named| Identity { named, group: named, ..Identity::alone() };
    let group = tempfile::tempdir().unwrap();
    drop(Store::open(group.path(), &named(7)).unwrap());
    let moved = Identity { group: 9, ..named(7) };
    assert_eq!(Store::open(group.path(), &moved).unwrap().1.group, 7);
    let refused = Store::open(group.path(), &named(8)).unwrap_err().to_string();
    assert!(refused.contains("members have other names, or another token"), "{refused}");
    // Who asked for nothing when it was made, or asks for nothing now.
    drop(Store::open(folder.path(), &named(8)).unwrap());
    drop(Store::open(group.path(), &Identity::alone()).unwrap());

    let _open = Store::open(folder.path(), &Identity::alone()).unwrap();
    assert!(matches!(reopened(folder.path()), Err(StoreError::InUse)));
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let check = |write: Write, want: &str| {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path(), &Identity::alone()).unwrap();
        store.write(&write).unwrap();
        drop(store);
        let text = reopened(folder.path()).unwrap_err().to_string();
        assert_eq!(text, format!("the journal is corrupt: {want}; nothing of it is used"));
    };
    let of = |hard: Hard, entries: Vec<Entry>| Write { hard, entries, ..Write::default() };
    check(of(hard(1, 2), vec![entry(1, 1)]), "commit = 2: must be between 0 and 1");
    let gap = "entry 3 of term 1 after Point { index: 1, term: 1 }";
    check(of(hard(1, 0), vec![entry(1, 1), entry(3, 1)]), gap);
    let late = "an entry of term 2, which is after term 1";
    check(of(hard(1, 0), vec![entry(1, 2)]), late);
    let cut = Some(Cut { point: Point { index: 1, term: 1 }, all: false });
    let bare = Write { hard: hard(1, 0), cut, ..Write::default() };
    check(bare, "entries after 0 are missing");
}

#[test]
fn a_file_that_is_cut_off_is_never_an_empty_journal() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path());
    let whole = fs::read(folder.path().join(FILE)).unwrap();
    for part in [0, 1, 100, 4096, whole.len() / 2, whole.len() - 4096] {
        let torn = tempfile::tempdir().unwrap();
        fs::write(torn.path().join(FILE), &whole[..part]).unwrap();
        let refused = reopened(torn.path());
        assert!(matches!(refused, Err(StoreError::Corrupt(_))), "{part} bytes: {refused:?}");
        let after = fs::read(torn.path().join(FILE)).unwrap();
        assert!(after == whole[..part], "{part} bytes: the file was changed");
    }
}

#[test]
fn a_flipped_bit_is_found_or_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let want = written(folder.path());
    let whole = fs::read(folder.path().join(FILE)).unwrap();
    let used: Vec<_> = (0..whole.len()).filter(|at| whole[*at] != 0).collect();
    let mut found = 0;
    for at in used.iter().step_by(used.len() / 60) {
        let torn = tempfile::tempdir().unwrap();
        let mut bytes = whole.clone();
        bytes[*at] ^= 1 << (at % 8);
        fs::write(torn.path().join(FILE), bytes).unwrap();
        match reopened(torn.path()) {
            Ok(saved) => assert_eq!(saved, want, "byte {at}"),
            Err(StoreError::Corrupt(_)) => {
                found += 1;
                // Nor does a second try make anything else of it.
                assert!(
                    reopened(torn.path()).is_ok_and(|saved| saved == want) || is_refused(&torn)
                );
            }
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    assert!(found > 5, "{found}");
}
