//! Functions of the corpus that ask something of the runtime. The replies are known.

//= log_steps
//? a b c
//> 3
pub fn handle(request: Request<'_>) -> Reply {
    let mut count = 0;
    for word in request.text()?.split(' ') { log!("word {word:?} of call {}", request.id()); count += 1; }
    Ok(count.to_string().into_bytes())
}

//= log_much
//? 500
//> done
pub fn handle(request: Request<'_>) -> Reply {
    let n: u32 = request.text()?.parse().map_err(|_| "a number")?;
    for n in 0..n { log!("line {n:08x} {:.3}", f64::from(n) / 7.0) }
    Ok(b"done".to_vec())
}

//= random_bytes
//? 64
//> distinct
use alloc::collections::BTreeSet;
pub fn handle(request: Request<'_>) -> Reply {
    let n: usize = request.text()?.parse().map_err(|_| "a number")?;
    let mut all = BTreeSet::new();
    for _ in 0..n { let mut key = [0; 16]; partywall_fn::random::fill(&mut key); all.insert(key); }
    Ok(if all.len() == n { "distinct" } else { "the same" }.into())
}

//= uuid
//? 
//> 36 4 true
pub fn handle(_: Request<'_>) -> Reply {
    let mut b = [0_u8; 16];
    partywall_fn::random::fill(&mut b);
    b[6] = b[6] & 15 | 64;
    b[8] = b[8] & 63 | 128;
    let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let id = format!("{}-{}-{}-{}-{}", hex(&b[..4]), hex(&b[4..6]), hex(&b[6..8]), hex(&b[8..10]), hex(&b[10..]));
    Ok(format!("{} {} {}", id.len(), &id[14..15], "89ab".contains(&id[19..20])).into())
}

//= shuffle
//? abcdefgh
//> abcdefgh
pub fn handle(request: Request<'_>) -> Reply {
    let mut all = request.body().to_vec();
    for i in (1..all.len()).rev() { all.swap(i, (partywall_fn::random::number() % (i as u64 + 1)) as usize) }
    all.sort();
    Ok(all)
}

//= time_of_day
//? 
//> later
pub fn handle(_: Request<'_>) -> Reply {
    let now = partywall_fn::clock::unix();
    let days = now.as_secs() / 86_400;
    let year = 1970 + days * 400 / 146_097;
    log!("{year}, {:02}:{:02}", now.as_secs() / 3600 % 24, now.as_secs() / 60 % 60);
    Ok(if year > 2020 { "later" } else { "earlier" }.into())
}

//= stopwatch
//? 1000
//> forward
use core::time::Duration;
pub fn handle(request: Request<'_>) -> Reply {
    let n: u64 = request.text()?.parse().map_err(|_| "a number")?;
    let begun = partywall_fn::clock::monotonic();
    let sum = (0..n).fold(0_u64, |s, n| core::hint::black_box(s ^ n.rotate_left(7)));
    let taken = partywall_fn::clock::monotonic().checked_sub(begun);
    log!("{sum} in {taken:?} of {:?}", partywall_fn::clock::resolution());
    Ok(match taken { Some(taken) if taken < Duration::from_secs(10) => "forward", Some(_) => "slow", None => "backward" }.into())
}

//= service_once
//? hello
//> service.a/b.C/One:hello
pub fn handle(request: Request<'_>) -> Reply { partywall_fn::service::call("service.a", "/b.C/One", request.body()) }

//= service_fan
//? x,y,z
//> s/1:x+s/2:y+s/3:z
pub fn handle(request: Request<'_>) -> Reply {
    let mut all = Vec::new();
    for (n, part) in request.text()?.split(',').enumerate() {
        let answer = partywall_fn::service::call("s", &format!("/{}", n + 1), part.as_bytes())?;
        all.push(String::from_utf8(answer).map_err(|e| e.to_string())?);
    }
    Ok(all.join("+").into_bytes())
}

//= service_while_busy
//? 5
//> 5 t/u:4 1940
use alloc::collections::BTreeMap;
pub fn handle(request: Request<'_>) -> Reply {
    let n: u64 = request.text()?.parse().map_err(|_| "a number")?;
    let mut kept: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for n in 0..n { kept.insert(n, partywall_fn::service::call("t", "/u", n.to_string().as_bytes())?); }
    let (last, sum) = (kept.values().last().cloned().unwrap_or_default(), kept.values().flatten().map(|b| u64::from(*b)).sum::<u64>());
    Ok(format!("{} {} {sum}", kept.len(), String::from_utf8_lossy(&last)).into_bytes())
}

//= parameters
//? anything
//> no parameter
pub fn handle(request: Request<'_>) -> Reply {
    match request.parameter("secret") { Some(secret) => Ok(secret.to_vec()), None => Ok(b"no parameter".to_vec()) }
}

//= token_bucket
//? 10
//> 3 of 10
/// A limit that lives as long as the call.
struct Bucket { tokens: f64, at: core::time::Duration }
impl Bucket {
    fn take(&mut self, now: core::time::Duration) -> bool {
        self.tokens = (self.tokens + (now - self.at).as_secs_f64() * 1e-3).min(3.0);
        self.at = now;
        let has = self.tokens >= 1.0;
        if has { self.tokens -= 1.0 }
        has
    }
}
pub fn handle(request: Request<'_>) -> Reply {
    let n: usize = request.text()?.parse().map_err(|_| "a number")?;
    let mut bucket = Bucket { tokens: 3.0, at: partywall_fn::clock::monotonic() };
    let taken = (0..n).filter(|_| bucket.take(partywall_fn::clock::monotonic())).count();
    Ok(format!("{taken} of {n}").into_bytes())
}
