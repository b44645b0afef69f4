//! What clients are without being told, `Send` for one: what tonic's are, for whatever they call by.

use std::cell::Cell;
use std::marker::{PhantomData, PhantomPinned};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use std::sync::MutexGuard;

use partywall_stubs_tests::{ours, tonics};

struct Type<T>(PhantomData<T>);

/// Traits that a type does not have.
trait Missing {
    fn unwind_safe(&self) -> bool {
        false
    }
    fn ref_unwind_safe(&self) -> bool {
        false
    }
    fn send(&self) -> bool {
        false
    }
    fn sync(&self) -> bool {
        false
    }
    fn unpin(&self) -> bool {
        false
    }
}

impl<T> Missing for Type<T> {}

/// Traits that a type has: a function of its own precedes that of a trait.
macro_rules! found {
    ($($function:ident: $auto:ident),*) => {$(
        impl<T: $auto> Type<T> {
            fn $function(&self) -> bool {
                true
            }
        }
    )*};
}

found!(unwind_safe: UnwindSafe, ref_unwind_safe: RefUnwindSafe, send: Send, sync: Sync, unpin: Unpin);

/// The traits that a type has, in order.
macro_rules! autos {
    ($type:ty) => {{
        let it = Type::<$type>(PhantomData);
        [it.unwind_safe(), it.ref_unwind_safe(), it.send(), it.sync(), it.unpin()]
    }};
}

#[test]
fn clients_are_safe_for_whatever_tonics_are_safe_for() {
    type Ours<T> = ours::pb::greeter_client::GreeterClient<T>;
    type Tonics<T> = tonics::pb::greeter_client::GreeterClient<T>;
    macro_rules! check {
        ($($type:ty: $expected:expr),* $(,)?) => {$(
            assert_eq!(autos!($type), $expected, "{}", stringify!($type));
            assert_eq!(autos!(Tonics<$type>), $expected, "tonic's of {}", stringify!($type));
            assert_eq!(autos!(Ours<$type>), $expected, "ours of {}", stringify!($type));
        )*};
    }
    check! {
        (): [true, true, true, true, true],
        &'static mut u8: [false, true, true, true, true],
        Cell<u8>: [true, false, true, false, true],
        Rc<u8>: [true, true, false, false, true],
        MutexGuard<'static, u8>: [true, true, false, true, true],
        PhantomPinned: [true, true, true, true, false],
        partywall::Channel: autos!(partywall::Channel),
        tonic::transport::Channel: autos!(tonic::transport::Channel),
    }
}
