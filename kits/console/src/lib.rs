//! What the web consoles are made of: that of an agent, and that of a fleet.
//!
//! ```text
//!   text ─► pieces ─► page ◄─ headers, assets      chart
//!             │                                      │
//!             └──► parts of a page ◄─────────────────┘
//!                     │
//!                     └─► live: the parts that changed, to every browser that follows the page
//!   session: who is logged in
//! ```
//!
//! Pages are rendered by the server and are whole without a script. The script only puts changed
//! parts in their places and keeps ages right. Every text is escaped; the policy of [`headers`] allows
//! a browser no script and no style but those of [`assets`].

pub mod assets;
pub mod chart;
pub mod headers;
pub mod live;
pub mod page;
pub mod pieces;
pub mod session;
pub mod text;
