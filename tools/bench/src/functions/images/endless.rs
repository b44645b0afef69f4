//! Never ends: in the place that its request names.

struct Endless;

impl Drop for Endless {
    fn drop(&mut self) {
        spin();
    }
}

fn spin() {
    loop {
        core::hint::black_box(0);
    }
}

fn allocate() {
    let mut kept = Vec::new();
    loop {
        kept.push(core::hint::black_box(vec![1_u8; 300]));
        if kept.len() == 50 {
            kept.clear();
        }
    }
}

fn format() {
    let mut number = 0_u64;
    loop {
        number += 1;
        core::hint::black_box(format!("{number:>10} {number:x} {:?}", "text"));
    }
}

pub fn handle(request: Request<'_>) -> Reply {
    match request.body().first() {
        Some(0) => spin(),
        Some(1) => allocate(),
        Some(2) => format(),
        _ => drop(core::hint::black_box(Endless)),
    }
    Ok(Vec::new())
}
