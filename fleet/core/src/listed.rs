//! Enumerations that come with the list of their values.

/// Declares an enumeration and the list of its values at once, so that no value can be missing in the
/// list: what is done for every value, such as a backup of every bucket, is done for a new one too.
///
/// ```
/// guest_fleet_core::listed! {
///     /// Where something is kept.
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum Place {
///         /// Near.
///         Here,
///         /// Far.
///         There,
///     }
/// }
/// assert_eq!(Place::ALL, [Place::Here, Place::There]);
/// ```
#[macro_export]
macro_rules! listed {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $value:ident,)* }) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$doc])* $value,)*
        }

        impl $name {
            /// Every value, in the order of their declaration.
            pub const ALL: [Self; [$(stringify!($value)),*].len()] = [$(Self::$value),*];
        }
    };
}
