//go:build !purego

#include "textflag.h"

// The registers of both kernels:
//   CX  steps left        AX, BX  row 0 and row 3 of A       DX, SI  bytes from row to row and from step to step of A
//   DI  the panel of B    R8      row 0 of C                 R9      bytes from row to row of C
//   Y0..Y11 sums, two a row; Y12, Y13 the step's 16 elements of B; Y14, Y15 elements of A

// LOAD32 and LOAD16 take the next step of B, and ask for one that is some KiB ahead: B may come from memory. A step in bfloat16 is eight
// pairs of an element of the lower half and one of the upper half.
#define LOAD32 \
	VMOVUPS (DI), Y12  \
	VMOVUPS 32(DI), Y13 \
	PREFETCHT0 1024(DI) \
	ADDQ    $64, DI

#define LOAD16 \
	VMOVDQU   (DI), Y13        \
	PREFETCHT0 2048(DI)       \
	VPSLLD    $16, Y13, Y12    \
	VANDPS    (R13), Y13, Y13  \
	ADDQ      $32, DI

#define ROW0 \
	VBROADCASTSS (AX), Y14      \
	VFMADD231PS  Y12, Y14, Y0   \
	VFMADD231PS  Y13, Y14, Y1

#define ROW1 \
	VBROADCASTSS (AX)(DX*1), Y15 \
	VFMADD231PS  Y12, Y15, Y2    \
	VFMADD231PS  Y13, Y15, Y3

#define ROW2 \
	VBROADCASTSS (AX)(DX*2), Y14 \
	VFMADD231PS  Y12, Y14, Y4    \
	VFMADD231PS  Y13, Y14, Y5

#define ROW3 \
	VBROADCASTSS (BX), Y15      \
	VFMADD231PS  Y12, Y15, Y6   \
	VFMADD231PS  Y13, Y15, Y7

#define ROW4 \
	VBROADCASTSS (BX)(DX*1), Y14 \
	VFMADD231PS  Y12, Y14, Y8    \
	VFMADD231PS  Y13, Y14, Y9

#define ROW5 \
	VBROADCASTSS (BX)(DX*2), Y15 \
	VFMADD231PS  Y12, Y15, Y10   \
	VFMADD231PS  Y13, Y15, Y11

#define STEP3 \
	ADDQ SI, AX

#define STEP6 \
	ADDQ SI, AX \
	ADDQ SI, BX

// PUT stores a row's sums, or adds them to what is there, and goes to the next row.
#define PUT(lo, hi) \
	VMOVUPS lo, (R8)   \
	VMOVUPS hi, 32(R8) \
	ADDQ    R9, R8

#define ADD(lo, hi) \
	VADDPS  (R8), lo, lo   \
	VADDPS  32(R8), hi, hi \
	PUT(lo, hi)

#define START \
	MOVQ   c+0(FP), R8     \
	MOVQ   ldc+8(FP), R9   \
	MOVQ   a+16(FP), AX    \
	MOVQ   rs+24(FP), DX   \
	MOVQ   ks+32(FP), SI   \
	MOVQ   b+40(FP), DI    \
	MOVQ   k+48(FP), CX    \
	MOVQ   mr+56(FP), R10  \
	SHLQ   $2, R9          \
	SHLQ   $2, DX          \
	SHLQ   $2, SI          \
	LEAQ   (AX)(DX*2), BX  \
	ADDQ   DX, BX          \
	MOVQ   R8, R11         \
	MOVQ   R10, R12        \
fetch:                     \
	PREFETCHT0 (R11)       \
	PREFETCHT0 60(R11)     \
	ADDQ   R9, R11         \
	DECQ   R12             \
	JNZ    fetch           \
	VXORPS Y0, Y0, Y0      \
	VXORPS Y1, Y1, Y1      \
	VXORPS Y2, Y2, Y2      \
	VXORPS Y3, Y3, Y3      \
	VXORPS Y4, Y4, Y4      \
	VXORPS Y5, Y5, Y5      \
	VXORPS Y6, Y6, Y6      \
	VXORPS Y7, Y7, Y7      \
	VXORPS Y8, Y8, Y8      \
	VXORPS Y9, Y9, Y9      \
	VXORPS Y10, Y10, Y10   \
	VXORPS Y11, Y11, Y11   \
	CMPQ   R10, $6         \
	JEQ    six             \
	CMPQ   R10, $5         \
	JEQ    five            \
	CMPQ   R10, $4         \
	JEQ    four            \
	CMPQ   R10, $3         \
	JEQ    three           \
	CMPQ   R10, $2         \
	JEQ    two             \
	JMP    one

// FINISH writes as many rows of C as there are, in R10.
#define FINISH \
	CMPB add+64(FP), $0  \
	JNE  sum             \
	PUT(Y0, Y1)          \
	DECQ R10             \
	JZ   done            \
	PUT(Y2, Y3)          \
	DECQ R10             \
	JZ   done            \
	PUT(Y4, Y5)          \
	DECQ R10             \
	JZ   done            \
	PUT(Y6, Y7)          \
	DECQ R10             \
	JZ   done            \
	PUT(Y8, Y9)          \
	DECQ R10             \
	JZ   done            \
	PUT(Y10, Y11)        \
	JMP  done            \
sum:                     \
	ADD(Y0, Y1)          \
	DECQ R10             \
	JZ   done            \
	ADD(Y2, Y3)          \
	DECQ R10             \
	JZ   done            \
	ADD(Y4, Y5)          \
	DECQ R10             \
	JZ   done            \
	ADD(Y6, Y7)          \
	DECQ R10             \
	JZ   done            \
	ADD(Y8, Y9)          \
	DECQ R10             \
	JZ   done            \
	ADD(Y10, Y11)        \
done:                    \
	VZEROUPPER           \
	RET

#define SIX(load) \
	load  \
	ROW0  \
	ROW1  \
	ROW2  \
	ROW3  \
	ROW4  \
	ROW5  \
	STEP6

#define FIVE(load) \
	load  \
	ROW0  \
	ROW1  \
	ROW2  \
	ROW3  \
	ROW4  \
	STEP6

#define FOUR(load) \
	load  \
	ROW0  \
	ROW1  \
	ROW2  \
	ROW3  \
	STEP6

#define THREE(load) \
	load  \
	ROW0  \
	ROW1  \
	ROW2  \
	STEP3

#define TWO(load) \
	load  \
	ROW0  \
	ROW1  \
	STEP3

#define ONE(load) \
	load  \
	ROW0  \
	STEP3

// func kernel32(c *float32, ldc int, a *float32, rs, ks int, b *float32, k, mr int, add bool)
TEXT ·kernel32(SB), NOSPLIT, $0-65
	START

	PCALIGN $32
six:
	SIX(LOAD32)
	DECQ CX
	JNZ  six
	JMP  end

	PCALIGN $32
five:
	FIVE(LOAD32)
	DECQ CX
	JNZ  five
	JMP  end

	PCALIGN $32
four:
	FOUR(LOAD32)
	DECQ CX
	JNZ  four
	JMP  end

	PCALIGN $32
three:
	THREE(LOAD32)
	DECQ CX
	JNZ  three
	JMP  end

	PCALIGN $32
two:
	TWO(LOAD32)
	DECQ CX
	JNZ  two
	JMP  end

	PCALIGN $32
one:
	ONE(LOAD32)
	DECQ CX
	JNZ  one

end:
	FINISH

// func kernel16(c *float32, ldc int, a *float32, rs, ks int, b *uint16, k, mr int, add bool)
TEXT ·kernel16(SB), NOSPLIT, $0-65
	LEAQ ·upper(SB), R13
	START

	PCALIGN $32
six:
	SIX(LOAD16)
	DECQ CX
	JNZ  six
	JMP  end

	PCALIGN $32
five:
	FIVE(LOAD16)
	DECQ CX
	JNZ  five
	JMP  end

	PCALIGN $32
four:
	FOUR(LOAD16)
	DECQ CX
	JNZ  four
	JMP  end

	PCALIGN $32
three:
	THREE(LOAD16)
	DECQ CX
	JNZ  three
	JMP  end

	PCALIGN $32
two:
	TWO(LOAD16)
	DECQ CX
	JNZ  two
	JMP  end

	PCALIGN $32
one:
	ONE(LOAD16)
	DECQ CX
	JNZ  one

end:
	FINISH

// func widenSteps(dst *float32, src *uint16, k int)
TEXT ·widenSteps(SB), NOSPLIT, $0-24
	MOVQ    dst+0(FP), AX
	MOVQ    src+8(FP), BX
	MOVQ    k+16(FP), CX
	VMOVUPS ·upper(SB), Y2

next:
	VMOVDQU (BX), Y1
	PREFETCHT0 2048(BX)
	VPSLLD  $16, Y1, Y0
	VPAND   Y2, Y1, Y1
	VMOVUPS Y0, (AX)
	VMOVUPS Y1, 32(AX)
	ADDQ    $32, BX
	ADDQ    $64, AX
	DECQ    CX
	JNZ     next
	VZEROUPPER
	RET

// A row times panels, four at a time, for a row alone has too few sums to keep the processor busy:
//   SI  the row of A      DX  its length     BX  the next panel's slice    CX  panels left    R8  the next place in C
//   AX  the element of A  DI  steps left     R9..R12  the panels           R13 the step in them, in bytes

#define BEGIN \
	MOVQ SI, AX   \
	MOVQ DX, DI   \
	XORQ R13, R13

#define AHEAD(loop) \
	ADDQ $64, R13 \
	ADDQ $4, AX   \
	DECQ DI       \
	JNZ  loop

#define PANEL(p, lo, hi) \
	VFMADD231PS (p)(R13*1), Y8, lo   \
	VFMADD231PS 32(p)(R13*1), Y8, hi

// func rowPanels(c, a *float32, b *[]float32, k, n int, add bool)
TEXT ·rowPanels(SB), NOSPLIT, $0-41
	MOVQ c+0(FP), R8
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), BX
	MOVQ k+24(FP), DX
	MOVQ n+32(FP), CX

panels:
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	CMPQ   CX, $4
	JGE    fours
	CMPQ   CX, $2
	JGE    twos
	TESTQ  CX, CX
	JEQ    done

	MOVQ (BX), R9
	ADDQ $24, BX
	BEGIN

one:
	VBROADCASTSS (AX), Y8
	PANEL(R9, Y0, Y1)
	AHEAD(one)
	MOVQ $1, R10
	JMP  put

twos:
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	MOVQ (BX), R9
	MOVQ 24(BX), R10
	ADDQ $48, BX
	BEGIN

two:
	VBROADCASTSS (AX), Y8
	PANEL(R9, Y0, Y1)
	PANEL(R10, Y2, Y3)
	AHEAD(two)
	MOVQ $2, R10
	JMP  put

fours:
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	MOVQ (BX), R9
	MOVQ 24(BX), R10
	MOVQ 48(BX), R11
	MOVQ 72(BX), R12
	ADDQ $96, BX
	BEGIN

four:
	VBROADCASTSS (AX), Y8
	PANEL(R9, Y0, Y1)
	PANEL(R10, Y2, Y3)
	PANEL(R11, Y4, Y5)
	PANEL(R12, Y6, Y7)
	AHEAD(four)
	MOVQ $4, R10

put:
	SUBQ R10, CX
	MOVQ $64, R9
	CMPB add+40(FP), $0
	JNE  sum
	PUT(Y0, Y1)
	DECQ R10
	JZ   panels
	PUT(Y2, Y3)
	DECQ R10
	JZ   panels
	PUT(Y4, Y5)
	PUT(Y6, Y7)
	JMP  panels

sum:
	ADD(Y0, Y1)
	DECQ R10
	JZ   panels
	ADD(Y2, Y3)
	DECQ R10
	JZ   panels
	ADD(Y4, Y5)
	ADD(Y6, Y7)
	JMP  panels

done:
	VZEROUPPER
	RET

// func prefetch(p unsafe.Pointer, bytes int)
TEXT ·prefetch(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ bytes+8(FP), CX

next:
	PREFETCHT1 (AX)
	ADDQ       $64, AX
	SUBQ       $64, CX
	JG         next
	RET

// EIGHT transposes the 8x8 block at R8, whose rows lie DX bytes apart, to R11, where they lie 64 bytes apart.
#define EIGHT \
	LEAQ       (R8)(DX*4), R10                \
	LEAQ       (DX)(DX*2), R9                 \
	VMOVUPS    (R8), X0                       \
	VMOVUPS    (R8)(DX*1), X1                 \
	VMOVUPS    (R8)(DX*2), X2                 \
	VMOVUPS    (R8)(R9*1), X3                 \
	VINSERTF128 $1, (R10), Y0, Y0             \
	VINSERTF128 $1, (R10)(DX*1), Y1, Y1       \
	VINSERTF128 $1, (R10)(DX*2), Y2, Y2       \
	VINSERTF128 $1, (R10)(R9*1), Y3, Y3       \
	VMOVUPS    16(R8), X4                     \
	VMOVUPS    16(R8)(DX*1), X5               \
	VMOVUPS    16(R8)(DX*2), X6               \
	VMOVUPS    16(R8)(R9*1), X7               \
	VINSERTF128 $1, 16(R10), Y4, Y4           \
	VINSERTF128 $1, 16(R10)(DX*1), Y5, Y5     \
	VINSERTF128 $1, 16(R10)(DX*2), Y6, Y6     \
	VINSERTF128 $1, 16(R10)(R9*1), Y7, Y7     \
	VUNPCKLPS  Y1, Y0, Y8                     \
	VUNPCKHPS  Y1, Y0, Y9                     \
	VUNPCKLPS  Y3, Y2, Y10                    \
	VUNPCKHPS  Y3, Y2, Y11                    \
	VUNPCKLPS  Y5, Y4, Y12                    \
	VUNPCKHPS  Y5, Y4, Y13                    \
	VUNPCKLPS  Y7, Y6, Y14                    \
	VUNPCKHPS  Y7, Y6, Y15                    \
	VUNPCKLPD  Y10, Y8, Y0                    \
	VUNPCKHPD  Y10, Y8, Y1                    \
	VUNPCKLPD  Y11, Y9, Y2                    \
	VUNPCKHPD  Y11, Y9, Y3                    \
	VUNPCKLPD  Y14, Y12, Y4                   \
	VUNPCKHPD  Y14, Y12, Y5                   \
	VUNPCKLPD  Y15, Y13, Y6                   \
	VUNPCKHPD  Y15, Y13, Y7                   \
	VMOVUPS    Y0, (R11)                      \
	VMOVUPS    Y1, 64(R11)                    \
	VMOVUPS    Y2, 128(R11)                   \
	VMOVUPS    Y3, 192(R11)                   \
	VMOVUPS    Y4, 256(R11)                   \
	VMOVUPS    Y5, 320(R11)                   \
	VMOVUPS    Y6, 384(R11)                   \
	VMOVUPS    Y7, 448(R11)

// transpose16 makes blocks of 16 rows and 8 columns, side by side, into their transposes, one below the other.
// func transpose16(dst, src *float32, ld, blocks int)
TEXT ·transpose16(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ ld+16(FP), DX
	MOVQ blocks+24(FP), CX
	SHLQ $2, DX

next:
	MOVQ SI, R8
	MOVQ DI, R11
	EIGHT
	LEAQ (SI)(DX*8), R8
	LEAQ 32(DI), R11
	EIGHT
	ADDQ $32, SI
	ADDQ $512, DI
	DECQ CX
	JNZ  next
	VZEROUPPER
	RET

// copy8 copies n times eight elements.
// func copy8(dst *float32, dstStride int, src *float32, srcStride, n int)
TEXT ·copy8(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ dstStride+8(FP), R8
	MOVQ src+16(FP), SI
	MOVQ srcStride+24(FP), R9
	MOVQ n+32(FP), CX
	SHLQ $2, R8
	SHLQ $2, R9

next:
	VMOVUPS (SI), Y0
	VMOVUPS Y0, (DI)
	ADDQ    R8, DI
	ADDQ    R9, SI
	DECQ    CX
	JNZ     next
	VZEROUPPER
	RET
