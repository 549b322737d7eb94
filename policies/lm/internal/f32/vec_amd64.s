//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// Loops take eight elements at a time. What is left at the end goes through the same instructions with a mask, so an element's result
// does not depend on where it stands. CX counts elements, R10 is the place in all slices, in bytes.

// NEXT jumps to tail if fewer than eight elements are left.
#define NEXT \
	SUBQ $8, CX \
	JLT  tail

// MASK jumps to done if nothing is left, else it sets Y15 to the mask of what is.
#define MASK \
	ADDQ    $8, CX            \
	JEQ     done              \
	LEAQ    ·masks+32(SB), R11 \
	SHLQ    $2, CX            \
	SUBQ    CX, R11           \
	VMOVUPS (R11), Y15

#define LOADM(p, y) VMASKMOVPS (p)(R10*1), Y15, y
#define STOREM(y, p) VMASKMOVPS y, Y15, (p)(R10*1)

// SUMPS and SUMPD add up the elements of Y0 into X0.
#define SUMPS \
	VEXTRACTF128 $1, Y0, X1 \
	VADDPS       X1, X0, X0 \
	VMOVHLPS     X0, X0, X1 \
	VADDPS       X1, X0, X0 \
	VMOVSHDUP    X0, X1     \
	VADDSS       X1, X0, X0

#define SUMPD \
	VEXTRACTF128 $1, Y0, X1  \
	VADDPD       X1, X0, X0  \
	VUNPCKHPD    X0, X0, X1  \
	VADDSD       X1, X0, X0

// func dot(a, b []float32) float32
TEXT ·dot(SB), NOSPLIT, $0-52
	MOVQ   a_base+0(FP), AX
	MOVQ   a_len+8(FP), CX
	MOVQ   b_base+24(FP), BX
	XORQ   R10, R10
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	SUBQ   $32, CX
	JLT    eights

loop:
	VMOVUPS     (AX)(R10*1), Y4
	VMOVUPS     32(AX)(R10*1), Y5
	VMOVUPS     64(AX)(R10*1), Y6
	VMOVUPS     96(AX)(R10*1), Y7
	VFMADD231PS (BX)(R10*1), Y4, Y0
	VFMADD231PS 32(BX)(R10*1), Y5, Y1
	VFMADD231PS 64(BX)(R10*1), Y6, Y2
	VFMADD231PS 96(BX)(R10*1), Y7, Y3
	ADDQ        $128, R10
	SUBQ        $32, CX
	JGE         loop

eights:
	ADDQ $32, CX

eight:
	NEXT
	VMOVUPS     (AX)(R10*1), Y4
	VFMADD231PS (BX)(R10*1), Y4, Y0
	ADDQ        $32, R10
	JMP         eight

tail:
	MASK
	LOADM(AX, Y4)
	LOADM(BX, Y5)
	VFMADD231PS Y5, Y4, Y1

done:
	VADDPS Y1, Y0, Y0
	VADDPS Y3, Y2, Y2
	VADDPS Y2, Y0, Y0
	SUMPS
	VMOVSS X0, ret+48(FP)
	VZEROUPPER
	RET

// func axpy(y []float32, a float32, x []float32)
TEXT ·axpy(SB), NOSPLIT, $0-56
	MOVQ         y_base+0(FP), AX
	MOVQ         y_len+8(FP), CX
	VBROADCASTSS a+24(FP), Y3
	MOVQ         x_base+32(FP), BX
	XORQ         R10, R10

loop:
	NEXT
	VMOVUPS     (AX)(R10*1), Y0
	VFMADD231PS (BX)(R10*1), Y3, Y0
	VMOVUPS     Y0, (AX)(R10*1)
	ADDQ        $32, R10
	JMP         loop

tail:
	MASK
	LOADM(AX, Y0)
	LOADM(BX, Y1)
	VFMADD231PS Y1, Y3, Y0
	STOREM(Y0, AX)

done:
	VZEROUPPER
	RET

// func scale(x []float32, a float32)
TEXT ·scale(SB), NOSPLIT, $0-28
	MOVQ         x_base+0(FP), AX
	MOVQ         x_len+8(FP), CX
	VBROADCASTSS a+24(FP), Y3
	XORQ         R10, R10

loop:
	NEXT
	VMULPS  (AX)(R10*1), Y3, Y0
	VMOVUPS Y0, (AX)(R10*1)
	ADDQ    $32, R10
	JMP     loop

tail:
	MASK
	LOADM(AX, Y0)
	VMULPS Y0, Y3, Y0
	STOREM(Y0, AX)

done:
	VZEROUPPER
	RET

// func add(y, x []float32)
TEXT ·add(SB), NOSPLIT, $0-48
	MOVQ y_base+0(FP), AX
	MOVQ y_len+8(FP), CX
	MOVQ x_base+24(FP), BX
	XORQ R10, R10

loop:
	NEXT
	VMOVUPS (AX)(R10*1), Y0
	VADDPS  (BX)(R10*1), Y0, Y0
	VMOVUPS Y0, (AX)(R10*1)
	ADDQ    $32, R10
	JMP     loop

tail:
	MASK
	LOADM(AX, Y0)
	LOADM(BX, Y1)
	VADDPS Y1, Y0, Y0
	STOREM(Y0, AX)

done:
	VZEROUPPER
	RET

// func mul(y, a, b []float32)
TEXT ·mul(SB), NOSPLIT, $0-72
	MOVQ y_base+0(FP), AX
	MOVQ y_len+8(FP), CX
	MOVQ a_base+24(FP), BX
	MOVQ b_base+48(FP), DX
	XORQ R10, R10

loop:
	NEXT
	VMOVUPS (BX)(R10*1), Y0
	VMULPS  (DX)(R10*1), Y0, Y0
	VMOVUPS Y0, (AX)(R10*1)
	ADDQ    $32, R10
	JMP     loop

tail:
	MASK
	LOADM(BX, Y0)
	LOADM(DX, Y1)
	VMULPS Y1, Y0, Y0
	STOREM(Y0, AX)

done:
	VZEROUPPER
	RET

// func mulAdd(y, a, b []float32)
TEXT ·mulAdd(SB), NOSPLIT, $0-72
	MOVQ y_base+0(FP), AX
	MOVQ y_len+8(FP), CX
	MOVQ a_base+24(FP), BX
	MOVQ b_base+48(FP), DX
	XORQ R10, R10

loop:
	NEXT
	VMOVUPS     (AX)(R10*1), Y0
	VMOVUPS     (BX)(R10*1), Y1
	VFMADD231PS (DX)(R10*1), Y1, Y0
	VMOVUPS     Y0, (AX)(R10*1)
	ADDQ        $32, R10
	JMP         loop

tail:
	MASK
	LOADM(AX, Y0)
	LOADM(BX, Y1)
	LOADM(DX, Y2)
	VFMADD231PS Y2, Y1, Y0
	STOREM(Y0, AX)

done:
	VZEROUPPER
	RET

// WIDE turns the eight elements of Y0 into float64 in Y2 and Y3.
#define WIDE \
	VCVTPS2PD    X0, Y2     \
	VEXTRACTF128 $1, Y0, X0 \
	VCVTPS2PD    X0, Y3

// func sum(x []float32) float64
TEXT ·sum(SB), NOSPLIT, $0-32
	MOVQ   x_base+0(FP), AX
	MOVQ   x_len+8(FP), CX
	XORQ   R10, R10
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5

loop:
	NEXT
	VMOVUPS (AX)(R10*1), Y0
	WIDE
	VADDPD  Y2, Y4, Y4
	VADDPD  Y3, Y5, Y5
	ADDQ    $32, R10
	JMP     loop

tail:
	MASK
	LOADM(AX, Y0)
	WIDE
	VADDPD Y2, Y4, Y4
	VADDPD Y3, Y5, Y5

done:
	VADDPD Y5, Y4, Y0
	SUMPD
	VMOVSD X0, ret+24(FP)
	VZEROUPPER
	RET

// func sumSquares(x []float32) float64
TEXT ·sumSquares(SB), NOSPLIT, $0-32
	MOVQ   x_base+0(FP), AX
	MOVQ   x_len+8(FP), CX
	XORQ   R10, R10
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5

loop:
	NEXT
	VMOVUPS     (AX)(R10*1), Y0
	WIDE
	VFMADD231PD Y2, Y2, Y4
	VFMADD231PD Y3, Y3, Y5
	ADDQ        $32, R10
	JMP         loop

tail:
	MASK
	LOADM(AX, Y0)
	WIDE
	VFMADD231PD Y2, Y2, Y4
	VFMADD231PD Y3, Y3, Y5

done:
	VADDPD Y5, Y4, Y0
	SUMPD
	VMOVSD X0, ret+24(FP)
	VZEROUPPER
	RET

// func dot3(a, b, c []float32) float64
TEXT ·dot3(SB), NOSPLIT, $0-80
	MOVQ   a_base+0(FP), AX
	MOVQ   a_len+8(FP), CX
	MOVQ   b_base+24(FP), BX
	MOVQ   c_base+48(FP), DX
	XORQ   R10, R10
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5

loop:
	NEXT
	VMOVUPS (AX)(R10*1), Y0
	VMULPS  (BX)(R10*1), Y0, Y0
	VMULPS  (DX)(R10*1), Y0, Y0
	WIDE
	VADDPD  Y2, Y4, Y4
	VADDPD  Y3, Y5, Y5
	ADDQ    $32, R10
	JMP     loop

tail:
	MASK
	LOADM(AX, Y0)
	LOADM(BX, Y1)
	LOADM(DX, Y2)
	VMULPS Y1, Y0, Y0
	VMULPS Y2, Y0, Y0
	WIDE
	VADDPD Y2, Y4, Y4
	VADDPD Y3, Y5, Y5

done:
	VADDPD Y5, Y4, Y0
	SUMPD
	VMOVSD X0, ret+72(FP)
	VZEROUPPER
	RET

// maximum takes x in eights and leaves the rest out. One NaN makes a NaN.
// func maximum(x []float32) float32
TEXT ·maximum(SB), NOSPLIT, $0-28
	MOVQ         x_base+0(FP), AX
	MOVQ         x_len+8(FP), CX
	XORQ         R10, R10
	VBROADCASTSS ·minusInf(SB), Y0
	VXORPS       Y2, Y2, Y2

loop:
	NEXT
	VMOVUPS (AX)(R10*1), Y1
	VMAXPS  Y1, Y0, Y0
	VCMPPS  $3, Y1, Y1, Y3
	VORPS   Y3, Y2, Y2
	ADDQ    $32, R10
	JMP     loop

tail:
	VORPS        Y2, Y0, Y0      // where NaN was seen all bits, which are a NaN
	VMOVMSKPS    Y2, R11
	VEXTRACTF128 $1, Y0, X1
	VMAXPS       X1, X0, X0
	VMOVHLPS     X0, X0, X1
	VMAXPS       X1, X0, X0
	VMOVSHDUP    X0, X1
	VMAXSS       X1, X0, X0
	TESTQ        R11, R11
	JEQ          done
	VPCMPEQD     X0, X0, X0

done:
	VMOVSS X0, ret+24(FP)
	VZEROUPPER
	RET

// EXP replaces Y0 by its exponential. R8 is the table of constants; Y1 to Y3 are lost. exp(x) = 2^n * exp(r) with n the integer next
// to x/ln 2, and exp(r) = 1 + r + r²*p(r). Two factors of half of n each reach beyond the exponents that one float32 can have. The
// bounds come first in MIN and MAX, which so let a NaN pass.
#define EXP \
	VMOVUPS     (R8), Y1          \
	VMINPS      Y0, Y1, Y0        \
	VMOVUPS     32(R8), Y1        \
	VMAXPS      Y0, Y1, Y0        \
	VMULPS      64(R8), Y0, Y1    \
	VROUNDPS    $0, Y1, Y1        \
	VFMADD231PS 96(R8), Y1, Y0    \
	VFMADD231PS 128(R8), Y1, Y0   \
	VMOVUPS     160(R8), Y2       \
	VFMADD213PS 192(R8), Y0, Y2   \
	VFMADD213PS 224(R8), Y0, Y2   \
	VFMADD213PS 256(R8), Y0, Y2   \
	VFMADD213PS 288(R8), Y0, Y2   \
	VFMADD213PS 320(R8), Y0, Y2   \
	VMULPS      Y0, Y0, Y3        \
	VFMADD213PS Y0, Y3, Y2        \
	VADDPS      352(R8), Y2, Y2   \
	VCVTPS2DQ   Y1, Y1            \
	VPSRAD      $1, Y1, Y3        \
	VPSUBD      Y3, Y1, Y1        \
	VPSLLD      $23, Y3, Y3       \
	VPSLLD      $23, Y1, Y1       \
	VPADDD      352(R8), Y3, Y3   \
	VPADDD      352(R8), Y1, Y1   \
	VMULPS      Y3, Y2, Y2        \
	VMULPS      Y1, Y2, Y0

// expSum computes y = exp(x-shift), stores it unless y is nil, and returns its sum.
// func expSum(y, x []float32, shift float32) float64
TEXT ·expSum(SB), NOSPLIT, $0-64
	MOVQ         y_base+0(FP), AX
	MOVQ         x_base+24(FP), BX
	MOVQ         x_len+32(FP), CX
	VBROADCASTSS shift+48(FP), Y6
	LEAQ         ·exps(SB), R8
	XORQ         R10, R10
	VXORPS       Y4, Y4, Y4
	VXORPS       Y5, Y5, Y5

loop:
	NEXT
	VMOVUPS (BX)(R10*1), Y0
	VSUBPS  Y6, Y0, Y0
	EXP
	TESTQ   AX, AX
	JEQ     count
	VMOVUPS Y0, (AX)(R10*1)

count:
	WIDE
	VADDPD Y2, Y4, Y4
	VADDPD Y3, Y5, Y5
	ADDQ   $32, R10
	JMP    loop

tail:
	MASK
	LOADM(BX, Y0)
	VSUBPS Y6, Y0, Y0
	EXP
	VANDPS Y15, Y0, Y0
	TESTQ  AX, AX
	JEQ    last
	STOREM(Y0, AX)

last:
	WIDE
	VADDPD Y2, Y4, Y4
	VADDPD Y3, Y5, Y5

done:
	VADDPD Y5, Y4, Y0
	SUMPD
	VMOVSD X0, ret+56(FP)
	VZEROUPPER
	RET

// DENOMINATOR computes 1 + exp(-x) of Y0 into Y0, and leaves x in Y4.
#define DENOMINATOR \
	VMOVAPS Y0, Y4          \
	VXORPS  Y1, Y1, Y1      \
	VSUBPS  Y0, Y1, Y0      \
	EXP                     \
	VADDPS  352(R8), Y0, Y0

// func silu(y, x []float32)
TEXT ·silu(SB), NOSPLIT, $0-48
	MOVQ y_base+0(FP), AX
	MOVQ y_len+8(FP), CX
	MOVQ x_base+24(FP), BX
	LEAQ ·exps(SB), R8
	XORQ R10, R10

loop:
	NEXT
	VMOVUPS (BX)(R10*1), Y0
	DENOMINATOR
	VDIVPS  Y0, Y4, Y0
	VMOVUPS Y0, (AX)(R10*1)
	ADDQ    $32, R10
	JMP     loop

tail:
	MASK
	LOADM(BX, Y0)
	DENOMINATOR
	VDIVPS Y0, Y4, Y0
	STOREM(Y0, AX)

done:
	VZEROUPPER
	RET

// SLOPE computes dy*s*(1+x*(1-s)) with s = 1/Y0, x in Y4 and dy in Y5, into Y0.
#define SLOPE \
	VMOVUPS     352(R8), Y1   \
	VDIVPS      Y0, Y1, Y0    \
	VSUBPS      Y0, Y1, Y2    \
	VFMADD213PS Y1, Y4, Y2    \
	VMULPS      Y5, Y0, Y0    \
	VMULPS      Y2, Y0, Y0

// func siluBack(dx, dy, x []float32)
TEXT ·siluBack(SB), NOSPLIT, $0-72
	MOVQ dx_base+0(FP), AX
	MOVQ dx_len+8(FP), CX
	MOVQ dy_base+24(FP), DX
	MOVQ x_base+48(FP), BX
	LEAQ ·exps(SB), R8
	XORQ R10, R10

loop:
	NEXT
	VMOVUPS (BX)(R10*1), Y0
	VMOVUPS (DX)(R10*1), Y5
	DENOMINATOR
	SLOPE
	VMOVUPS Y0, (AX)(R10*1)
	ADDQ    $32, R10
	JMP     loop

tail:
	MASK
	LOADM(BX, Y0)
	LOADM(DX, Y5)
	DENOMINATOR
	SLOPE
	STOREM(Y0, AX)

done:
	VZEROUPPER
	RET

// func norm(y, x, w []float32, r float32)
TEXT ·norm(SB), NOSPLIT, $0-76
	MOVQ         y_base+0(FP), AX
	MOVQ         y_len+8(FP), CX
	MOVQ         x_base+24(FP), BX
	MOVQ         w_base+48(FP), DX
	VBROADCASTSS r+72(FP), Y3
	XORQ         R10, R10

loop:
	NEXT
	VMULPS  (BX)(R10*1), Y3, Y0
	VMULPS  (DX)(R10*1), Y0, Y0
	VMOVUPS Y0, (AX)(R10*1)
	ADDQ    $32, R10
	JMP     loop

tail:
	MASK
	LOADM(BX, Y0)
	LOADM(DX, Y1)
	VMULPS Y0, Y3, Y0
	VMULPS Y1, Y0, Y0
	STOREM(Y0, AX)

done:
	VZEROUPPER
	RET

// func normBack(dx, dy, x, w []float32, r, t float32)
TEXT ·normBack(SB), NOSPLIT, $0-104
	MOVQ         dx_base+0(FP), AX
	MOVQ         dx_len+8(FP), CX
	MOVQ         dy_base+24(FP), BX
	MOVQ         x_base+48(FP), DX
	MOVQ         w_base+72(FP), SI
	VBROADCASTSS r+96(FP), Y5
	VBROADCASTSS t+100(FP), Y6
	XORQ         R10, R10

loop:
	NEXT
	VMULPS       (BX)(R10*1), Y5, Y0
	VMULPS       (SI)(R10*1), Y0, Y0
	VMOVUPS      (DX)(R10*1), Y1
	VFNMADD231PS Y1, Y6, Y0
	VADDPS       (AX)(R10*1), Y0, Y0
	VMOVUPS      Y0, (AX)(R10*1)
	ADDQ         $32, R10
	JMP          loop

tail:
	MASK
	LOADM(BX, Y0)
	LOADM(SI, Y2)
	LOADM(DX, Y1)
	LOADM(AX, Y3)
	VMULPS       Y0, Y5, Y0
	VMULPS       Y2, Y0, Y0
	VFNMADD231PS Y1, Y6, Y0
	VADDPS       Y3, Y0, Y0
	STOREM(Y0, AX)

done:
	VZEROUPPER
	RET

// func normGrad(dw, dy, x []float32, r float32)
TEXT ·normGrad(SB), NOSPLIT, $0-76
	MOVQ         dw_base+0(FP), AX
	MOVQ         dw_len+8(FP), CX
	MOVQ         dy_base+24(FP), BX
	MOVQ         x_base+48(FP), DX
	VBROADCASTSS r+72(FP), Y5
	XORQ         R10, R10

loop:
	NEXT
	VMULPS      (DX)(R10*1), Y5, Y1
	VMOVUPS     (AX)(R10*1), Y0
	VFMADD231PS (BX)(R10*1), Y1, Y0
	VMOVUPS     Y0, (AX)(R10*1)
	ADDQ        $32, R10
	JMP         loop

tail:
	MASK
	LOADM(DX, Y1)
	LOADM(BX, Y2)
	LOADM(AX, Y0)
	VMULPS      Y1, Y5, Y1
	VFMADD231PS Y2, Y1, Y0
	STOREM(Y0, AX)

done:
	VZEROUPPER
	RET

// ADAM takes g, m, v and p in Y0, Y1, Y2 and Y5 and updates the last three.
#define ADAM \
	VMULPS      Y14, Y0, Y0  \
	VMULPS      Y8, Y1, Y1   \
	VFMADD231PS Y0, Y9, Y1   \
	VMULPS      Y0, Y0, Y0   \
	VMULPS      Y10, Y2, Y2  \
	VFMADD231PS Y0, Y11, Y2  \
	VSQRTPS     Y2, Y3       \
	VFMADD213PS Y13, Y12, Y3 \
	VMULPS      Y7, Y1, Y4   \
	VDIVPS      Y3, Y4, Y4   \
	VMULPS      Y6, Y5, Y5   \
	VSUBPS      Y4, Y5, Y5

// func adam(p, g, m, v []float32, s *scalars)
TEXT ·adam(SB), NOSPLIT, $0-104
	MOVQ         p_base+0(FP), AX
	MOVQ         p_len+8(FP), CX
	MOVQ         g_base+24(FP), BX
	MOVQ         m_base+48(FP), DX
	MOVQ         v_base+72(FP), SI
	MOVQ         s+96(FP), R8
	VBROADCASTSS scalars_keep(R8), Y6
	VBROADCASTSS scalars_rate(R8), Y7
	VBROADCASTSS scalars_b1(R8), Y8
	VBROADCASTSS scalars_c1(R8), Y9
	VBROADCASTSS scalars_b2(R8), Y10
	VBROADCASTSS scalars_c2(R8), Y11
	VBROADCASTSS scalars_root(R8), Y12
	VBROADCASTSS scalars_eps(R8), Y13
	VBROADCASTSS scalars_scale(R8), Y14
	XORQ         R10, R10

loop:
	NEXT
	VMOVUPS (BX)(R10*1), Y0
	VMOVUPS (DX)(R10*1), Y1
	VMOVUPS (SI)(R10*1), Y2
	VMOVUPS (AX)(R10*1), Y5
	ADAM
	VMOVUPS Y1, (DX)(R10*1)
	VMOVUPS Y2, (SI)(R10*1)
	VMOVUPS Y5, (AX)(R10*1)
	ADDQ    $32, R10
	JMP     loop

tail:
	MASK
	LOADM(BX, Y0)
	LOADM(DX, Y1)
	LOADM(SI, Y2)
	LOADM(AX, Y5)
	ADAM
	STOREM(Y1, DX)
	STOREM(Y2, SI)
	STOREM(Y5, AX)

done:
	VZEROUPPER
	RET

// widenEights and roundEights leave out what does not fill eight.
// func widenEights(dst []float32, src []uint16)
TEXT ·widenEights(SB), NOSPLIT, $0-48
	MOVQ dst_base+0(FP), AX
	MOVQ dst_len+8(FP), CX
	MOVQ src_base+24(FP), BX
	SHRQ $3, CX
	JEQ  done

loop:
	VPMOVZXWD (BX), Y0
	VPSLLD    $16, Y0, Y0
	VMOVUPS   Y0, (AX)
	ADDQ      $16, BX
	ADDQ      $32, AX
	DECQ      CX
	JNZ       loop

done:
	VZEROUPPER
	RET

// func roundEights(dst []uint16, src []float32)
TEXT ·roundEights(SB), NOSPLIT, $0-48
	MOVQ     dst_base+0(FP), AX
	MOVQ     dst_len+8(FP), CX
	MOVQ     src_base+24(FP), BX
	VPCMPEQD Y7, Y7, Y7
	VPSRLD   $31, Y7, Y4     // 1
	VPSRLD   $17, Y7, Y5     // 0x7fff
	VPSLLD   $6, Y4, Y6      // 0x40, which makes a NaN quiet
	SHRQ     $3, CX
	JEQ      done

loop:
	VMOVUPS      (BX), Y0
	VCMPPS       $3, Y0, Y0, Y1
	VPSRLD       $16, Y0, Y2
	VPAND        Y4, Y2, Y3
	VPADDD       Y5, Y3, Y3
	VPADDD       Y0, Y3, Y3
	VPSRLD       $16, Y3, Y3
	VPOR         Y6, Y2, Y2
	VBLENDVPS    Y1, Y2, Y3, Y3
	VEXTRACTI128 $1, Y3, X2
	VPACKUSDW    X2, X3, X3
	VMOVDQU      X3, (AX)
	ADDQ         $32, BX
	ADDQ         $16, AX
	DECQ         CX
	JNZ          loop

done:
	VZEROUPPER
	RET
