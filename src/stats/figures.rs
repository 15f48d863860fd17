//! The form of the two public structures.

/// Defines a structure of figures, which are all `u64`, and a function that goes through them by name.
macro_rules! figures {
    ($(#[$about:meta])* $Struct:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        #[repr(C)]
        pub struct $Struct {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl $Struct {
            /// Calls `f` with each name and value, in order of declaration.
            pub fn each(&self, mut f: impl FnMut(&'static str, u64)) {
                $(f(stringify!($name), self.$name);)*
            }
        }
    };
}

pub(super) use figures;
