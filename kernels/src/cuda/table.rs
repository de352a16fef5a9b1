//! Functions of NVIDIA's libraries, looked up by name.
//!
//! cudarc finds and opens a library. Its wrappers panic where a function is missing, and take
//! every status for one that they know: a status that a newer library adds would be a value that
//! an enum of Rust's cannot have. So functions are looked up here, and give plain integers.

/// A table of functions, each of which returns an integer.
macro_rules! functions {
    ($table:ident of $library:expr, { $($name:ident($($argument:ty),* $(,)?);)* }) => {
        /// Every function that is called, by the library's own names.
        #[expect(non_snake_case, reason = "the library's names")]
        pub(in crate::cuda) struct $table {
            $(pub(in crate::cuda) $name:
                unsafe extern "C" fn($($argument),*) -> std::ffi::c_int,)*
        }

        impl $table {
            /// Those of the library.
            ///
            /// # Errors
            /// The library's name for the first function that it lacks.
            fn look_up() -> Result<Self, &'static str> {
                // SAFETY: callers have seen that the library can be opened.
                let library = unsafe { $library };
                Ok(Self {
                    // SAFETY: the types are those of the library's headers.
                    $($name: *unsafe { library.get(stringify!($name).as_bytes()) }
                        .map_err(|_| stringify!($name))?,)*
                })
            }
        }
    };
}

pub(super) use functions;
