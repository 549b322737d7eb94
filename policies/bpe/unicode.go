package bpe

import "unicode"

// What Unicode 16 added, which the tokenizers library knows and Go's Unicode 15 does not. Its Digits knows those of Unicode 17 too.
var (
	letters16 = &unicode.RangeTable{
		R16: []unicode.Range16{{0x1c89, 0x1c8a, 1}, {0xa7cb, 0xa7cd, 1}, {0xa7da, 0xa7dc, 1}},
		R32: []unicode.Range32{
			{0x105c0, 0x105f3, 1}, {0x10d4a, 0x10d65, 1}, {0x10d6f, 0x10d85, 1}, {0x10ec2, 0x10ec4, 1}, {0x11380, 0x11389, 1}, {0x1138b, 0x1138b, 1},
			{0x1138e, 0x1138e, 1}, {0x11390, 0x113b5, 1}, {0x113b7, 0x113b7, 1}, {0x113d1, 0x113d1, 1}, {0x113d3, 0x113d3, 1}, {0x11bc0, 0x11be0, 1},
			{0x13460, 0x143fa, 1}, {0x16100, 0x1611d, 1}, {0x16d40, 0x16d6c, 1}, {0x18cff, 0x18cff, 1}, {0x1e5d0, 0x1e5ed, 1}, {0x1e5f0, 0x1e5f0, 1},
			{0x2ebf0, 0x2ee5d, 1},
		},
	}
	capitals16 = &unicode.RangeTable{
		R16: []unicode.Range16{{0x1c89, 0x1c89, 1}, {0xa7cb, 0xa7cc, 1}, {0xa7da, 0xa7dc, 2}},
		R32: []unicode.Range32{{0x10d50, 0x10d65, 1}},
	}
	smalls16 = &unicode.RangeTable{
		R16: []unicode.Range16{{0x1c8a, 0x1c8a, 1}, {0xa7cd, 0xa7cd, 1}, {0xa7db, 0xa7db, 1}},
		R32: []unicode.Range32{{0x10d70, 0x10d85, 1}},
	}
	numbers16 = &unicode.RangeTable{
		R32: []unicode.Range32{
			{0x10d40, 0x10d49, 1}, {0x116d0, 0x116e3, 1}, {0x11bf0, 0x11bf9, 1}, {0x16130, 0x16139, 1}, {0x16d70, 0x16d79, 1}, {0x1ccf0, 0x1ccf9, 1},
			{0x1e5f1, 0x1e5fa, 1},
		},
	}
	marks16 = &unicode.RangeTable{
		R16: []unicode.Range16{{0x897, 0x897, 1}},
		R32: []unicode.Range32{
			{0x10d69, 0x10d6d, 1}, {0x10efc, 0x10efc, 1}, {0x113b8, 0x113c0, 1}, {0x113c2, 0x113c2, 1}, {0x113c5, 0x113c5, 1}, {0x113c7, 0x113ca, 1},
			{0x113cc, 0x113d0, 1}, {0x113d2, 0x113d2, 1}, {0x113e1, 0x113e2, 1}, {0x11f5a, 0x11f5a, 1}, {0x1611e, 0x1612f, 1}, {0x1e5ee, 0x1e5ef, 1},
		},
	}
	numbers17 = &unicode.RangeTable{
		R32: []unicode.Range32{{0x11de0, 0x11de9, 1}, {0x16ff4, 0x16ff6, 1}},
	}
)

func isCapital(r rune) bool {
	return unicode.IsUpper(r) || r > unicode.MaxLatin1 && unicode.Is(capitals16, r)
}

func isSmall(r rune) bool {
	return unicode.IsLower(r) || r > unicode.MaxLatin1 && unicode.Is(smalls16, r)
}

func isNumber(r rune) bool {
	return unicode.IsNumber(r) || r > unicode.MaxLatin1 && unicode.Is(numbers16, r)
}

func isDigit(r rune) bool { return isNumber(r) || r > unicode.MaxLatin1 && unicode.Is(numbers17, r) }
