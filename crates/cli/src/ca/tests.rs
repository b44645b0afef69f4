//! A directory that is left at each step of a replacement, and what is refused.

use std::cell::Cell;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn new(domain: &str) -> Authority {
    Authority::new(&TrustDomain::new(domain).unwrap(), SystemTime::now()).unwrap()
}

fn init(path: &Path) -> Result<String, String> {
    let directory = path.into();
    let init = Init { directory, domain: None, from: None, key: None };
    init.run().map_err(|e| e.to_string())
}

/// Fails at this step, from 0 on; whether it was reached.
fn failing<T>(at: usize, run: impl FnOnce(Failpoint<'_>) -> T) -> (T, bool) {
    let steps = Cell::new(0);
    let done = run(&mut |_| {
        steps.set(steps.get() + 1);
        match steps.get() > at {
            true => Err(io::Error::other("the test's")),
            false => Ok(()),
        }
    });
    (done, steps.get() > at)
}

fn names(path: &Path) -> Vec<String> {
    let names = fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Whatever step is the last one, the coordinator has an authority, and trusts the old root.
#[test]
fn a_rotation_that_stops_at_any_step_leaves_an_authority() {
    for at in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca");
        init(&path).unwrap();
        let roots = || -> Vec<Vec<u8>> {
            let trust = Trust::load(DOMAIN, &path, Clock::now()).unwrap();
            trust.roots().certificates().map(|(_, der)| der.to_vec()).collect()
        };
        let old = roots().swap_remove(0);
        let (done, reached) = failing(at, |failpoint| {
            Directory::open(&path).unwrap().rotate(None, failpoint).map(drop)
        });
        assert_eq!(done.is_err(), reached, "step {at}");
        let left = roots();
        assert!(left.contains(&old), "step {at}: {left:?}");
        // What was left there is no obstacle.
        let before = left[0].clone();
        Directory::open(&path).unwrap().rotate(None, &mut on).unwrap();
        let now = roots();
        assert!(now[0] != before && now.contains(&before) && now.contains(&old), "step {at}");
        assert_eq!(names(&path), [KEY, CERTIFICATES, CROSSED, TRUSTED], "step {at}");
        if !reached {
            assert_eq!(
                (at, left.len()),
                (5, 2),
                "an old root, what it says, two files, and a name"
            );
            return;
        }
    }
}

#[test]
fn an_init_that_stops_at_any_step_can_be_done_again_or_is_done() {
    for at in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca");
        let (done, reached) = failing(at, |failpoint| {
            Directory::make(&path).unwrap().install(&new(DOMAIN), &[], failpoint)
        });
        assert_eq!(done.is_err(), reached, "step {at}");
        match path.join(CERTIFICATES).exists() {
            true => assert!(init(&path).unwrap_err().contains("there is an authority already")),
            false => drop(init(&path).unwrap()),
        }
        Trust::load(DOMAIN, &path, Clock::now()).unwrap();
        if !reached {
            return;
        }
    }
}

/// One that a rotation has left without its last step is finished by the next one.
#[test]
fn a_next_key_of_nobody_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca");
    init(&path).unwrap();
    files::write(&path.join(NEXT), new(DOMAIN).to_pem().1.as_bytes(), 0o600, Over::Refuse).unwrap();
    let domain = TrustDomain::new(DOMAIN).unwrap();
    let text = read(&path.join(CERTIFICATES)).unwrap();
    Directory::open(&path).unwrap().finish(&text, &domain).unwrap();
    assert_eq!(names(&path), [KEY, CERTIFICATES, TRUSTED]);
    fs::rename(path.join(KEY), path.join(NEXT)).unwrap();
    Directory::open(&path).unwrap().finish(&text, &domain).unwrap();
    assert_eq!(names(&path), [KEY, CERTIFICATES, TRUSTED]);
    Trust::load(DOMAIN, &path, Clock::now()).unwrap();
}

#[test]
fn a_directory_that_others_reach_or_change_gets_no_authority() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = init(&path).unwrap_err();
    assert!(refused.contains("ca: others can reach it (mode 755)"), "{refused}");
    assert!(refused.contains("remedy: `chmod 700 "), "{refused}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    let held = Directory::open(&path).unwrap();
    let refused = init(&path).unwrap_err();
    assert!(refused.contains("another `partywall ca` is at work"), "{refused}");
    drop(held);
    init(&path).unwrap();
    for name in [CERTIFICATES, KEY] {
        let mode = fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
    }
    let missing = init(&dir.path().join("no/ca")).unwrap_err();
    assert!(missing.contains("remedy: make the directory above it"), "{missing}");
    let file = init(&path.join(KEY)).unwrap_err();
    assert!(file.contains("this is no directory"), "{file}");
}

#[test]
fn a_trust_domain_is_that_of_the_certificate() {
    let described = Described::all(&new("a.example").to_pem().0).unwrap();
    let domain = |text: &str| TrustDomain::new(text).unwrap();
    let of = |all: &[Described], given: Option<&TrustDomain>| domain_of(Path::new("c"), all, given);
    assert_eq!(of(&described, None), Ok(Some(domain("a.example"))));
    assert_eq!(of(&described, Some(&domain("a.example"))), Ok(Some(domain("a.example"))));
    let refused = of(&described, Some(&domain("b"))).unwrap_err();
    assert!(refused.ends_with("of trust domain `a.example`, not of `b`; remedy: drop --domain"));
    assert_eq!(of(&[], Some(&domain("b"))), Ok(Some(domain("b"))));
    assert_eq!(of(&[], None), Ok(None));
}
