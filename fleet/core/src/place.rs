//! Where an agent stands among all: a hash that is fixed for one salt, and independent between two.

/// The place of an agent. FNV-1a over both texts, then the finaliser of splitmix64, because the upper
/// bits of FNV of short texts are much alike.
#[must_use]
pub fn place(salt: &str, agent: &str) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let bytes = salt.bytes().chain([0]).chain(agent.bytes());
    let hash = bytes.fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
