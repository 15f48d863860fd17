use super::*;

#[test]
fn blocks_are_found_until_they_are_freed() {
    // What other tests sample may have the hash of one of these.
    if !cfg!(miri) && !crate::os::child::is_alone() {
        return;
    }
    let mut live = Live::new();
    let address = |n: usize| n * 48 + 0x7f00_0000_0010;
    for n in 0..5000 {
        assert!(live.insert(address(n), n as u32, n as u64 * 3));
    }
    assert_eq!(live.iter().count(), 5000);
    for n in (0..5000).step_by(2) {
        let entry = live.remove(address(n)).unwrap();
        assert_eq!((entry.site, entry.born), (n as u32, n as u64 * 3));
        assert!(live.remove(address(n)).is_none());
    }
    for n in 0..5000 {
        assert!(n % 2 == 0 || may_hold(ptr::without_provenance_mut(address(n))), "{n}");
    }
    let wrong = (0..5000).step_by(2).filter(|&n| may_hold(ptr::without_provenance_mut(address(n)))).count();
    assert!(wrong < 50, "{wrong}");
    for n in 5000..7500 {
        assert!(live.insert(address(n), n as u32, 0));
    }
    assert_eq!(live.iter().count(), 5000);
    live.clear();
    assert!((0..7500).all(|n| !may_hold(ptr::without_provenance_mut(address(n)))));
}
