//! The directory of an authority, as it is read.

use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use super::*;

/// A directory with an authority of `partywall.local`.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let (certificates, key) = another().to_pem();
        place.write(CERTIFICATES, &certificates, 0o644);
        place.write(KEY, &key, 0o600);
        fs::create_dir(place.path(TRUSTED)).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        fs::write(self.path(name), text).unwrap();
        self.chmod(name, mode);
    }

    fn chmod(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn load(&self) -> Result<Trust, String> {
        Trust::load(DOMAIN, self.0.path(), Clock::now()).map_err(|e| e.to_string())
    }

    /// Why it is not read: the file, and these words.
    fn refused(&self, name: &str, words: &[&str]) {
        let why = self.load().unwrap_err();
        assert!(why.starts_with(&format!("{}: ", self.path(name).display())), "{why}");
        for words in words.iter().chain(&["remedy: "]) {
            assert!(why.contains(words), "{why:?} lacks {words:?}");
        }
    }
}

fn another() -> Authority {
    Authority::new(&TrustDomain::new(DOMAIN).unwrap(), SystemTime::now()).unwrap()
}

#[test]
fn a_directory_with_wrong_modes_is_refused_with_the_remedy() {
    let place = Place::new();
    assert_eq!(place.load().unwrap().roots().certificates().count(), 1);
    for mode in [0o640, 0o604, 0o610] {
        place.chmod(KEY, mode);
        let remedy = format!("`chmod 600 {}`", place.path(KEY).display());
        place.refused(KEY, &[&format!("(mode {mode:o})"), &remedy]);
    }
    place.chmod(KEY, 0o620);
    place.refused(KEY, &["others can write", "chmod go-w"]);
    place.chmod(KEY, 0o600);
    place.chmod(CERTIFICATES, 0o666);
    place.refused(CERTIFICATES, &["certify whom it likes", "chmod go-w"]);
    place.chmod(CERTIFICATES, 0o644);
    place.chmod(".", 0o770);
    place.refused(CERTIFICATES, &["(mode 770)", "chmod go-w"]);
    place.chmod(".", 0o700);
    place.write("trusted/old.pem", &another().to_pem().0, 0o646);
    place.refused("trusted/old.pem", &["others can write", "chmod go-w"]);
    place.chmod("trusted/old.pem", 0o600);
    assert_eq!(place.load().unwrap().roots().certificates().count(), 2);
}

#[test]
fn a_file_of_an_authority_of_another_owner_is_refused() {
    let place = Place::new();
    let own = rustix::process::geteuid().as_raw();
    if own != 0 {
        // Only root gives files away. As another user sees it, nothing that this one owns is to be trusted,
        // and in a user namespace even `/` may be this user's.
        let Err(Why::Text(text)) = Kind::Authority.find(&place.path(KEY), own + 1) else {
            panic!("it is found")
        };
        let theirs = format!("user {own} owns ");
        assert!(
            text.contains(&theirs) && text.contains("remedy: chown it to root or to"),
            "{text}"
        );
        return;
    }
    chown(place.path(KEY), Some(4711), None).unwrap();
    let refused = place.load().unwrap_err();
    let path = place.path(KEY).display().to_string();
    assert!(refused.contains(&path) && refused.contains("remedy: chown it to root"), "{refused}");
}

#[test]
fn a_directory_that_lacks_files_or_has_others_is_refused() {
    let place = Place::new();
    place.write("trusted/none.pem", "", 0o600);
    place.refused("trusted/none.pem", &["no `-----BEGIN CERTIFICATE-----`", "remove it"]);
    fs::remove_file(place.path("trusted/none.pem")).unwrap();
    place.write("trusted/README", "of no interest", 0o666);
    assert!(place.load().is_ok());
    place.write(KEY, &another().to_pem().1, 0o600);
    place.refused(CERTIFICATES, &["the key is not that of the certificate"]);
    place.write(KEY, "-----", 0o600);
    place.refused(KEY, &["this is no private key"]);
    fs::remove_file(place.path(KEY)).unwrap();
    place.refused(KEY, &["No such file", "`partywall ca init`"]);
    symlink(place.path(CERTIFICATES), place.path(KEY)).unwrap();
    place.refused(KEY, &["others than its owner can reach"]);
    fs::remove_file(place.path(CERTIFICATES)).unwrap();
    place.refused(CERTIFICATES, &["No such file", "`partywall ca init`"]);
    place.write(CERTIFICATES, &"a".repeat(LARGEST as usize + 1), 0o600);
    place.refused(CERTIFICATES, &["over 65536 bytes"]);
    fs::remove_file(place.path(CERTIFICATES)).unwrap();
    fs::create_dir(place.path(CERTIFICATES)).unwrap();
    place.refused(CERTIFICATES, &["no regular file", "`partywall ca init`"]);
}

/// Between the two steps by which an authority is replaced, the certificate is the new one already.
#[test]
fn the_key_of_a_certificate_may_be_on_its_way() {
    let place = Place::new();
    let (certificates, key) = another().to_pem();
    place.write(NEXT, &key, 0o600);
    let before = place.load().unwrap().authority.root().to_vec();
    place.write(CERTIFICATES, &certificates, 0o644);
    assert_ne!(place.load().unwrap().authority.root(), before);
    fs::remove_file(place.path(KEY)).unwrap();
    assert_ne!(place.load().unwrap().authority.root(), before);
    place.chmod(NEXT, 0o640);
    place.refused(NEXT, &["others than its owner can reach"]);
    fs::remove_file(place.path(NEXT)).unwrap();
    place.refused(KEY, &["No such file"]);
}

#[test]
fn roots_beyond_those_of_a_message_are_refused() {
    let place = Place::new();
    for at in 1..ROOTS {
        place.write(&format!("trusted/{at:02}.pem"), &another().to_pem().0, 0o600);
    }
    let trust = place.load().unwrap();
    assert!(trust.has_room(0).is_ok());
    assert!(trust.has_room(500).unwrap_err().contains("16 are the most; remedy: remove those"));
    let room = Place::new().load().unwrap();
    assert!(room.has_room(500).is_ok());
    assert!(room.has_room(ROOTS_BYTES).unwrap_err().contains("go into a message"));
    place.write("trusted/16.pem", &another().to_pem().0, 0o600);
    place.refused("trusted/16.pem", &["remedy: remove it"]);
}
