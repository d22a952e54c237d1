//! Enumerations that come with the list of their values, and with their names.

/// An enumeration of [`listed!`](crate::listed!) whose values have names.
pub trait Named: Copy + 'static {
    /// Every value, in the order of their declaration.
    const ALL: &'static [Self];

    /// The name of a value for programs: in documents and in labels of metrics.
    fn name(self) -> &'static str;

    /// The sentence that stands above a value in the source.
    fn about(self) -> &'static str;
}

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
///
/// Where every value has a name, the enumeration is [`Named`](crate::listed::Named) as well:
///
/// ```
/// use guest_fleet_core::listed::Named;
///
/// guest_fleet_core::listed! {
///     /// Where something is kept.
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum Place {
///         /// Near.
///         Here = "here",
///         /// On another machine.
///         FarAway = "far_away",
///     }
/// }
/// assert_eq!(Place::ALL.map(Place::name), ["here", "far_away"]);
/// assert_eq!(Place::of_name("far_away"), Some(Place::FarAway));
/// assert_eq!(Place::FarAway.about(), "On another machine.");
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
    ($(#[$meta:meta])* pub enum $name:ident {
        $(#[doc = $about:literal] $value:ident = $text:literal,)*
    }) => {
        $crate::listed! {
            $(#[$meta])*
            pub enum $name {
                $(#[doc = $about] $value,)*
            }
        }

        impl $name {
            /// Its name for programs: in documents and in labels of metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)*
                }
            }

            /// The value of a name.
            #[must_use]
            pub fn of_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.name() == name)
            }
        }

        impl $crate::listed::Named for $name {
            const ALL: &'static [Self] = &Self::ALL;

            fn name(self) -> &'static str {
                self.name()
            }

            fn about(self) -> &'static str {
                match self {
                    $(Self::$value => $about.trim_ascii(),)*
                }
            }
        }
    };
}
