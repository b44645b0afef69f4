use super::*;
use partywall_functions::image::Image;
use partywall_functions::signed::Made;
use std::os::unix::fs::PermissionsExt as _;

const ROOM: Room = Room { functions: 3, image_bytes: 1 << 20 };

fn image(registry: &Registry, name: &str, code: u8) -> Vec<u8> {
    let image = Image { code: vec![code; 64], ..Image::default() };
    let made = Made { sources: "s".into(), compiler: "c".into() };
    Signed::new(name, image, made, registry.key()).to_bytes()
}

fn deployed(budget_us: u64) -> Deployed {
    Deployed {
        image: [0; 32],
        image_bytes: 0,
        sources: "s".into(),
        key: "k".into(),
        deployed_ms: 1,
        budget_us,
        idempotent: false,
        parameters: BTreeMap::from([("a".into(), ByteBuf::from(b"1".to_vec()))]),
        secrets: BTreeMap::new(),
    }
}

fn registry() -> (tempfile::TempDir, Registry) {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::open(&dir.path().join("state")).unwrap();
    (dir, registry)
}

#[test]
fn versions_come_go_back_and_outlive_the_host() {
    let (dir, registry) = registry();
    let (one, two) = (image(&registry, "f", 1), image(&registry, "f", 2));
    registry.deploy(("f", "a"), deployed(10), &one, ROOM).unwrap();
    let record = registry.deploy(("f", "a"), deployed(20), &two, ROOM).unwrap();
    assert_eq!((record.current, record.version().deployed.budget_us), (2, 20));
    let found = |registry: &Registry| {
        let record = registry.find("f").unwrap();
        let version = record.version();
        (version.number, registry.image("f", version.deployed.image).unwrap().image().code[0])
    };
    assert_eq!(found(&registry), (2, 2));
    registry.roll_back("f", 0).unwrap();
    assert_eq!(found(&registry), (1, 1));
    let none = registry.roll_back("f", 0).unwrap_err().to_string();
    assert_eq!(none, "`f` has no version before 1; it has 1, 2");
    registry.ban("f", true).unwrap();
    let key = registry.key().public();
    drop(registry);
    let again = Registry::open(&dir.path().join("state")).unwrap();
    assert_eq!((found(&again), again.find("f").unwrap().is_banned), ((1, 1), true));
    assert_eq!(again.key().public(), key, "what it has signed stays good");
    // The next number is none that there was.
    let third = again.deploy(("f", "a"), deployed(30), &one, ROOM).unwrap();
    assert_eq!(third.current, 3);
    again.remove("f").unwrap();
    assert!(matches!(again.find("f"), Err(RegistryError::Unknown(_))));
    assert!(matches!(
        again.image_bytes("f", third.version().deployed.image),
        Err(RegistryError::Damaged(_))
    ));
}

#[test]
fn an_owner_has_no_more_than_its_room() {
    let (_dir, registry) = registry();
    let bytes = |name| image(&registry, name, 1);
    for name in ["a", "b", "c"] {
        registry.deploy((name, "o"), deployed(1), &bytes(name), ROOM).unwrap();
    }
    let full = registry.deploy(("d", "o"), deployed(1), &bytes("d"), ROOM).unwrap_err();
    assert!(full.to_string().contains("would have 4 functions, and its limit is 3"), "{full}");
    // Another version of one is no other function; another owner has its own room.
    registry.deploy(("c", "o"), deployed(1), &bytes("c"), ROOM).unwrap();
    registry.deploy(("d", "p"), deployed(1), &bytes("d"), ROOM).unwrap();
    registry.remove("a").unwrap();
    registry.deploy(("e", "o"), deployed(1), &bytes("e"), ROOM).unwrap();
    let each = bytes("e").len() as u64;
    let small = Room { image_bytes: 4 * each, ..ROOM };
    let full = registry.deploy(("e", "o"), deployed(1), &bytes("e"), small).unwrap_err();
    assert!(
        full.to_string().contains("bytes of images and parameters, and its limit is"),
        "{full}"
    );
    let theirs = registry.deploy(("e", "p"), deployed(1), &bytes("e"), ROOM).unwrap_err();
    assert!(theirs.to_string().contains("another owner has a function `e`"), "{theirs}");
    // Parameters and secrets of all versions count.
    let mut large = deployed(1);
    large.secrets.insert("key".into(), vec![7; 60_000].into());
    let room = Room { image_bytes: 100_000, ..ROOM };
    registry.deploy(("f", "q"), large.clone(), &bytes("f"), room).unwrap();
    let full = registry.deploy(("f", "q"), large, &bytes("f"), room).unwrap_err();
    assert!(full.to_string().contains("and its limit is 100000"), "{full}");
    assert_eq!(registry.find("e").unwrap().versions.len(), 1, "what is refused changes nothing");
}

#[test]
fn the_oldest_versions_go_with_their_images() {
    let (_dir, registry) = registry();
    let first = image(&registry, "f", 0);
    for number in 0..=KEPT as u8 {
        let bytes = if number == 0 { first.clone() } else { image(&registry, "f", number) };
        registry.deploy(("f", "o"), deployed(1), &bytes, ROOM).unwrap();
    }
    let record = registry.find("f").unwrap();
    assert_eq!((record.versions.len(), record.versions[0].number), (KEPT, 2));
    let digest: [u8; 32] = Sha256::digest(&first).into();
    assert!(registry.image_bytes("f", digest).is_err());
    // One that several versions have stays with the last of them.
    let last = image(&registry, "f", KEPT as u8);
    let digest: [u8; 32] = Sha256::digest(&last).into();
    if !record.versions.iter().any(|version| version.deployed.image == digest) {
        registry.deploy(("f", "o"), deployed(1), &last, ROOM).unwrap();
    }
    registry.deploy(("g", "o"), deployed(1), &last, ROOM).unwrap();
    registry.remove("g").unwrap();
    registry.image_bytes("f", digest).unwrap();
}

#[test]
fn a_directory_that_others_reach_or_have_is_refused() {
    let (dir, registry) = registry();
    let state = dir.path().join("state");
    let taken = Registry::open(&state).unwrap_err();
    assert!(matches!(taken, RegistryError::Taken(_)), "{taken}");
    drop(registry);
    let mode = |mode| fs::set_permissions(&state, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o750);
    let open = Registry::open(&state).unwrap_err().to_string();
    assert!(open.contains("mode 750") && open.contains("chmod go="), "{open}");
    mode(0o700);
    fs::write(state.join("builder.key"), "none").unwrap();
    let key = Registry::open(&state).unwrap_err().to_string();
    assert!(key.contains("builder.key: this is no private key"), "{key}");
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(Registry::open(&file).is_err());
}

#[test]
fn an_image_of_another_host_needs_its_key() {
    let (_one, sender) = registry();
    let (dir, receiver) = registry();
    let bytes = image(&sender, "f", 1);
    let read = |registry: &Registry| Signed::from_bytes(&bytes, registry.trusted());
    assert!(read(&receiver).is_err());
    drop(receiver);
    let trusted = dir.path().join("state/trusted");
    fs::create_dir(&trusted).unwrap();
    fs::write(trusted.join("sender.pub"), sender.key().public().to_pem()).unwrap();
    fs::write(trusted.join("notes.txt"), "no key").unwrap();
    let receiver = Registry::open(&dir.path().join("state")).unwrap();
    assert_eq!(read(&receiver).unwrap().key(), sender.key().public().id());
    // A record that is none is damaged, and nothing else.
    let damaged = super::read("f", &[1, 2, 3]).unwrap_err();
    assert!(damaged.to_string().contains("the record of `f` is damaged"), "{damaged}");
}

/// A registry with some functions, closed: its directory, its file, and the functions with their images.
fn kept() -> (tempfile::TempDir, PathBuf, Vec<(String, Record)>) {
    let (dir, registry) = registry();
    for code in 1..=3 {
        let name = format!("f{code}");
        let image = image(&registry, &name, code);
        registry.deploy((&name, "o"), deployed(1), &image, ROOM).unwrap();
    }
    let all = registry.all().unwrap();
    let file = dir.path().join("state/registry.redb");
    (dir, file, all)
}

/// Whether a registry opens; one that does has all that it had.
fn opens(file: &Path, all: &[(String, Record)]) -> Result<(), String> {
    let registry = Registry::open(file.parent().unwrap()).map_err(|error| error.to_string())?;
    assert_eq!(registry.all().unwrap(), all);
    for (name, record) in all {
        registry.image(name, record.version().deployed.image).unwrap();
    }
    Ok(())
}

#[test]
fn a_registry_that_is_damaged_is_named_and_left() {
    use partywall_testkit::{Random, trials};
    let (_dir, file, all) = kept();
    opens(&file, &all).unwrap();
    let whole = fs::read(&file).unwrap();
    let mut random = Random::of_this_run();
    let check = |bytes: &[u8], what: &str, must_fail: bool| {
        fs::write(&file, bytes).unwrap();
        let opened = opens(&file, &all);
        assert!(!must_fail || opened.is_err(), "{what}");
        if let Err(why) = opened {
            let names = why.contains("registry.redb: ") && why.contains("; ");
            assert!(names && why.contains("deploy anew"), "{what}: {why}");
            assert!(fs::read(&file).unwrap() == bytes, "{what}: it is another one now");
        }
    };
    for length in [0, 1, 100, 4096, whole.len() / 2, whole.len() - 4096, whole.len() - 1] {
        check(&whole[..length], &format!("the first {length} bytes"), true);
    }
    check(b"[owner.a]\ncall = [\"network\"]\n", "a policy", true);
    check(&vec![0; whole.len()], "zeros", true);
    let noise: Vec<_> = (0..whole.len()).map(|_| random.draw() as u8).collect();
    check(&noise, "random bytes", true);
    check(&[&whole[..4096], &noise[4096..]].concat(), "random bytes behind the head", true);
    // The first byte of either commit is the number of the form.
    let mut older = whole.clone();
    (older[64], older[192]) = (1, 1);
    check(&older, "another version", true);
    for round in 0..trials(2000) {
        let mut bytes = whole.clone();
        // What is used of it is at its begin.
        let within = if random.below(2) == 0 { 512 } else { bytes.len() };
        let (at, many) = (random.below(within), 1 + random.below(64));
        for byte in bytes.iter_mut().skip(at).take(many) {
            *byte = random.draw() as u8;
        }
        check(&bytes, &format!("round {round}: {many} random bytes at {at}"), false);
    }
    fs::write(&file, &whole).unwrap();
    opens(&file, &all).unwrap();
}

#[test]
fn a_registry_that_cannot_be_written_is_named() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let test = "a_registry_that_cannot_be_written_is_named";
    if partywall_testkit::in_own_process(module_path!(), test, &[]).is_some() {
        return;
    }
    // Root may write all files otherwise.
    let mut rights = capabilities(None).unwrap();
    rights.effective.remove(CapabilitySet::DAC_OVERRIDE);
    set_capabilities(None, rights).unwrap();
    let (_dir, file, all) = kept();
    let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o400);
    let why = opens(&file, &all).unwrap_err();
    assert!(
        why.contains("registry.redb: ") && why.contains("let this user read and write"),
        "{why}"
    );
    mode(0o600);
    opens(&file, &all).unwrap();
}

/// A disk without room, for which a limit of the file's length stands in: what was deployed goes on, and the
/// next deployment that has room is there.
#[test]
fn a_full_disk_takes_no_deployment_and_loses_none() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let test = "registry::tests::a_full_disk_takes_no_deployment_and_loses_none";
    if std::env::var_os("PARTYWALL_TEST_FULL").is_none() {
        // The limit is an error and no signal where that is ignored.
        let mut own = std::process::Command::new("sh");
        own.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
        own.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
        let said = own.env("PARTYWALL_TEST_FULL", "1").output().unwrap();
        let text = String::from_utf8_lossy(&[&said.stdout[..], &said.stderr].concat()).into_owned();
        assert!(said.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let large = |registry: &Registry, name: &str, code| {
        let image = Image { code: vec![code; 1 << 20], ..Image::default() };
        let made = Made { sources: "s".into(), compiler: "c".into() };
        Signed::new(name, image, made, registry.key()).to_bytes()
    };
    let room = Room { functions: 100, image_bytes: 1 << 30 };
    let (dir, registry) = registry();
    let deploy = |registry: &Registry, name: &str, code: u8| {
        let image = large(registry, name, code);
        registry.deploy((name, "o"), deployed(code.into()), &image, room)
    };
    let file = dir.path().join("state/registry.redb");
    let mut names = (0..90_u8).map(|number| (number, format!("g{number}")));
    for round in 1..=3 {
        let first = deploy(&registry, "f", 100 + round).unwrap();
        let maximum = getrlimit(Resource::Fsize).maximum;
        let limit = |current| setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
        limit(Some(fs::metadata(&file).unwrap().len()));
        // Until what is free in the file is used up.
        let refused = names.find_map(|(code, name)| {
            let refused = deploy(&registry, &name, code).err();
            refused.map(|why| (why.to_string(), name))
        });
        let (why, refused) = refused.expect("it has an end");
        assert!(why.contains("registry.redb: ") && why.contains("make room on its disk"), "{why}");
        // What was there is called, and what was refused is not there, however often it is tried.
        for _ in 0..2 {
            assert_eq!(registry.find("f").unwrap(), first);
            registry.image("f", first.version().deployed.image).unwrap();
            assert!(matches!(registry.find(&refused), Err(RegistryError::Unknown(_))));
            assert!(deploy(&registry, "f", 200 + round).is_err());
        }
        limit(maximum);
        let next = deploy(&registry, "f", 200 + round).unwrap();
        assert_eq!(next.current, first.current + 1);
    }
    let last = registry.find("f").unwrap();
    drop(registry);
    let again = Registry::open(&dir.path().join("state")).unwrap();
    assert_eq!(again.find("f").unwrap(), last);
}
