//! Charges, limits and shares.

use super::*;

fn quotas(most: usize) -> Quotas {
    Quotas::new(Totals([most; RESOURCES]), Limits { links: 100, ..Limits::default() }, 0)
}

fn user(q: &Quotas, uid: u32) -> Arc<Usage> {
    q.account(Account::User(uid), None)
}

#[test]
fn charge_counts_until_drop_and_handles_share_one_account() {
    let q = quotas(1000);
    let one = user(&q, 1).charge(Resource::Links, 99).unwrap();
    let mut two = user(&q, 1).charge(Resource::Links, 1).unwrap();
    let refused = user(&q, 1).charge(Resource::Links, 1).unwrap_err();
    assert!(matches!(refused, Exceeded::Own { has: 100, .. }), "{refused}");
    assert_eq!(refused.to_string(), "user 1 has 100 links, the most that one may have");
    assert!(two.set(2).is_err());
    assert_eq!(two.amount(), 1);
    two.force(3);
    assert_eq!(user(&q, 1).used(Resource::Links), 102);
    drop(one);
    two.set(100).unwrap();
    two.set(0).unwrap();
    drop(two);
    assert_eq!(q.0.state.lock().unwrap().used, [0; RESOURCES]);
    assert_eq!(user(&q, 1).used(Resource::Links), 0);
}

#[test]
fn user_has_connections_and_served_links_up_to_the_limits() {
    let q = Quotas::new(Totals::for_descriptors(1 << 20), Limits::default(), 0);
    for (resource, most) in [(Resource::Connections, 4096), (Resource::Served, 16 * 1024)] {
        let usage = user(&q, 1);
        let _all = usage.charge(resource, most).unwrap();
        let refused = usage.charge(resource, 1).unwrap_err();
        assert!(matches!(refused, Exceeded::Own { has, .. } if has == most), "{refused}");
        assert!(user(&q, 2).charge(resource, 1).is_ok(), "another user's");
    }
}

#[test]
fn next_account_has_a_share_whatever_others_take() {
    let q = quotas(64);
    let mut held = Vec::new();
    for (uid, share) in [(1, 32), (2, 16), (3, 8), (4, 4), (5, 2), (6, 1)] {
        let usage = user(&q, uid);
        let mut had = 0;
        while let Ok(charge) = usage.charge(Resource::Waiting, 1) {
            held.push(charge);
            had += 1;
        }
        assert_eq!(had, share, "user {uid}");
        let refused = usage.charge(Resource::Waiting, 1).unwrap_err();
        assert!(matches!(refused, Exceeded::Share { .. }), "{refused}");
    }
    // Root may have the last.
    let root = user(&q, 0);
    held.push(root.charge(Resource::Waiting, 1).unwrap());
    assert!(root.charge(Resource::Waiting, 1).is_err());
    held.clear();
    assert!(user(&q, 9).charge(Resource::Waiting, 32).is_ok());
}

/// Who called until it was refused had all that the server's user might serve.
#[test]
fn no_caller_has_all_that_a_server_may_have() {
    let q = quotas(64);
    let server = user(&q, 100);
    let mut held = Vec::new();
    for (uid, share) in [(1, 16), (2, 8), (3, 4), (4, 2), (5, 1), (6, 1)] {
        let caller = user(&q, uid);
        let mut had = 0;
        let refused = loop {
            match server.charge_served(&caller) {
                Ok(charge) => held.push(charge),
                Err(refused) => break refused,
            }
            had += 1;
        };
        assert_eq!(had, share, "user {uid}: {refused}");
        let is_its_own =
            matches!(&refused, Exceeded::ToServers { account: Account::User(u), .. } if *u == uid);
        assert!(is_its_own || held.len() == 32, "{refused}");
    }
    assert_eq!(held.len(), 32);
    held.clear();
    let of_its_own = (0..).map_while(|_| server.charge_served(&server).ok());
    assert_eq!(of_its_own.collect::<Vec<_>>().len(), 32);
    let root = user(&q, 0);
    let of_root = (0..).map_while(|_| server.charge_served(&root).ok());
    assert_eq!(of_root.collect::<Vec<_>>().len(), 32);
    assert!(lock(&server.used)[Resource::Served as usize].by.is_empty());
}

/// Links that one user had reported after a start were taken from what the others might have: all
/// of it.
#[test]
fn shares_ignore_amounts_outside_the_whole() {
    let q = quotas(64);
    let (one, two) = (user(&q, 1), user(&q, 2));
    let mut own = one.charge_own(Resource::Links, 100).unwrap();
    assert!(one.charge_own(Resource::Links, 1).is_err());
    assert_eq!(two.charge(Resource::Links, 32).unwrap().amount(), 32);
    own.force(0);
    own.force(50);
    assert_eq!((one.used(Resource::Links), q.0.state.lock().unwrap().used[2]), (50, 0));
    let _made = one.charge(Resource::Links, 32).unwrap();
    assert!(one.charge(Resource::Links, 1).is_err());
    assert!(two.charge(Resource::Links, 16).is_ok());
}

#[test]
fn principal_with_a_quota_has_own_limits_and_account() {
    let q = quotas(1000);
    let own = Limits { links: 3, ..Limits::default() };
    let web = q.account(Account::Principal("web".into()), Some(&own));
    let _three = web.charge(Resource::Links, 3).unwrap();
    assert!(web.charge(Resource::Links, 1).is_err());
    assert!(user(&q, 1).charge(Resource::Links, 100).is_ok());
}

#[test]
fn half_of_the_memory_is_for_parcels_and_a_half_of_it_for_one() {
    let machine = rustix::system::sysinfo();
    let half = machine.totalram as usize * machine.mem_unit as usize / 2;
    let limits = Limits { parcel_bytes: usize::MAX, ..Limits::default() };
    let q = Quotas::new(Totals::for_descriptors(1 << 20), limits, 0);
    for (uid, share) in [(1, half / 2), (0, half)] {
        let usage = user(&q, uid);
        let mut charge = usage.charge(Resource::ParcelBytes, share).unwrap();
        let refused = charge.set(share + 1).unwrap_err();
        assert!(matches!(refused, Exceeded::Share { .. }), "user {uid}: {refused}");
    }
}
