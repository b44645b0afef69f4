//! Row 34: policy files that are wrong, or that others could change. A coordinator does not start with one,
//! and says which file, which line, and what to do.
//!
//! Nothing in a policy refers to anything that refers back, so the only cycles are those of symbolic links.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use partywall_attacks::Victim;

use super::PROGRAMS;

/// What a coordinator says that does not start with this file.
fn says(policy: &Path) -> String {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("c.sock");
    let arguments = ["--socket", at.to_str().unwrap(), "--policy", policy.to_str().unwrap()];
    let mut coordinator = Victim::start(PROGRAMS.coordinator, &arguments, &[]);
    assert_eq!(coordinator.ended().code(), Some(1), "{:?}", coordinator.logged());
    assert!(!at.exists(), "there is a socket");
    coordinator.logs(&[""])
}

fn starts(policy: &Path) {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("c.sock");
    let arguments = ["--socket", at.to_str().unwrap(), "--policy", policy.to_str().unwrap()];
    let mut coordinator = Victim::start(PROGRAMS.coordinator, &arguments, &[]);
    assert_eq!(coordinator.line(), "ready", "{:?}", coordinator.logged());
}

#[test]
fn row_34_a_policy_with_a_mistake_is_refused_by_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy.toml");
    let said = |text: &[u8]| {
        fs::write(&file, text).unwrap();
        says(&file).replace(dir.path().to_str().unwrap(), "DIR")
    };
    let whole = "[principal.web]\nuid = 1\n[service.a]\nregister = ['web']\n";
    fs::write(&file, whole).unwrap();
    starts(&file);
    for (text, line, part) in [
        ("\nx = 1\n", 2, "unknown key `x`; there are harden, "),
        ("[principal.web]\nuid = 1\nuidd = 2\n", 3, "unknown key `uidd`"),
        ("[service.a]\n\n\nregisters = []\n", 4, "unknown key `registers`"),
        ("[service.a.call.web]\nmethods = ['*']\ndescriptor = 1\n", 3, "unknown key `descriptor`"),
        ("[principal.web]\nuid = 1\n[principal.web]\nuid = 2\n", 3, "duplicate key"),
        ("[principal.web]\nuid = 1\nuid = 2\n", 3, "duplicate key"),
        (
            "[principal.web]\nuid = 'root'\n",
            2,
            "`uid`: found string \"root\"; write a whole number",
        ),
        (
            "[principal.web]\nuid = 4294967296\n",
            2,
            "`uid`: found integer `4294967296`, which is too large",
        ),
        ("[principal.anyone]\nuid = 1\n", 1, "principal.anyone: "),
        ("[service.a]\nregister = ['wbe']\n", 2, "no principal `wbe`"),
        ("[service.a]\nregister = ['anyone'\n", 2, "unclosed array"),
        ("[service.'a/b']\n", 1, "service.a/b"),
        ("[names]\na = 'file:///etc/passwd'\n", 2, "names.a: "),
    ] {
        let said = said(text.as_bytes());
        let begin = format!("DIR/policy.toml:{line}: ");
        assert!(said.starts_with(&begin), "{said} does not begin with {begin}");
        assert!(said.contains(part), "{said} lacks {part}");
    }
    assert_eq!(
        said(b"# caf\xe9\n"),
        "DIR/policy.toml: stream did not contain valid UTF-8; remedy: save it as UTF-8, which TOML is"
    );
    let nested = [&b"a = "[..], &[b'['; 20_000]].concat();
    let nested = said(&nested);
    assert!(nested.starts_with("DIR/policy.toml:1: "), "{nested}");
    let large = said(&vec![b'#'; 8 << 20]);
    assert!(large.contains("the most that a policy may have; remedy: "), "{large}");
}

#[test]
fn row_34_a_policy_that_others_could_change_is_refused() {
    let all = tempfile::tempdir().unwrap();
    let (dir, other) = (all.path().join("dir"), all.path().join("other"));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&other).unwrap();
    let file = dir.join("policy.toml");
    fs::write(&file, "").unwrap();
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let said = |path: &Path| says(path).replace(all.path().to_str().unwrap(), "ALL");
    mode(&dir, 0o755);
    for (path, right, wrong) in
        [(&file, 0o644, [0o664, 0o646, 0o666]), (&dir, 0o755, [0o775, 0o757, 0o777])]
    {
        for wrong in wrong {
            mode(path, wrong);
            let shown = path.display().to_string().replace(all.path().to_str().unwrap(), "ALL");
            assert_eq!(
                said(&file),
                format!(
                    "ALL/dir/policy.toml: others can write {shown} (mode {wrong:o}) and could change the \
                     policy; remedy: chmod go-w {shown}"
                )
            );
        }
        mode(path, right);
    }
    starts(&file);
    // Symbolic links: each directory on the way counts.
    symlink(&file, other.join("link")).unwrap();
    mode(&other, 0o755);
    starts(&other.join("link"));
    mode(&other, 0o777);
    let through = said(&other.join("link"));
    assert!(through.contains("others can write ALL/other (mode 777)"), "{through}");
    mode(&other, 0o755);
    symlink(other.join("b"), other.join("a")).unwrap();
    symlink(other.join("a"), other.join("b")).unwrap();
    assert_eq!(
        said(&other.join("a")),
        "ALL/other/a: Too many levels of symbolic links (os error 40); remedy: correct the symbolic \
         links, which lead back to themselves"
    );
    symlink(other.join("nowhere"), other.join("gone")).unwrap();
    let gone = said(&other.join("gone"));
    assert!(gone.contains("remedy: write a policy there, or correct the path"), "{gone}");
    for irregular in [Path::new("/dev/zero"), &dir] {
        let said = said(irregular);
        assert!(
            said.ends_with(": this is no regular file; remedy: name the policy's file"),
            "{said}"
        );
    }
    let queue = dir.join("queue");
    rustix::fs::mkfifoat(rustix::fs::CWD, &queue, rustix::fs::Mode::RWXU).unwrap();
    assert!(said(&queue).contains("this is no regular file"));
    another_users(&file, &dir);
}

/// Root gives the file away. To any other user, in a user namespace where root is nobody whom it knows, a
/// directory on the way is another one's; but where all is this user's (CI maps root to it), it stays so.
fn another_users(file: &Path, dir: &Path) {
    let own = rustix::process::geteuid();
    let refused = |owner: u32, shown: &Path| {
        format!(
            "{}: user {owner} owns {} and could change the policy; remedy: chown it to root or to user \
             {}, or keep the policy elsewhere",
            file.display(),
            shown.display(),
            own.as_raw()
        )
    };
    if !own.is_root() {
        let unshare = ["--user", "--map-current-user", PROGRAMS.coordinator, "--socket", "c.sock"];
        let policy = ["--policy", file.to_str().unwrap()];
        let seen = ["--user", "--map-current-user", "stat", "--format=%u", "/"];
        let seen = Command::new("unshare").args(seen).output().unwrap().stdout;
        if String::from_utf8(seen).unwrap().trim() == own.as_raw().to_string() {
            return;
        }
        let mut coordinator = Victim::start("unshare", &[&unshare[..], &policy].concat(), &[]);
        assert_eq!(coordinator.ended().code(), Some(1), "{:?}", coordinator.logged());
        assert_eq!(coordinator.logs(&[""]), refused(65534, Path::new("/")));
        return;
    }
    for path in [file, dir] {
        chown(path, Some(1234), None).unwrap();
        assert_eq!(says(file), refused(1234, path));
        chown(path, Some(0), None).unwrap();
    }
    starts(file);
}
