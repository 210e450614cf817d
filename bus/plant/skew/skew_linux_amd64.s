#include "textflag.h"

// func gettime()
// Called by the runtime as C calls: DI is the clock, SI where its time goes.
TEXT ·gettime(SB), NOSPLIT|NOFRAME, $0-0
	PUSHQ	DI
	PUSHQ	SI
	SUBQ	$8, SP // C wants 16
	MOVQ	·honest(SB), AX
	CALL	AX
	ADDQ	$8, SP
	POPQ	SI
	POPQ	DI
	CMPL	DI, $0 // CLOCK_REALTIME; the monotonic one stays
	JNE	done
	MOVQ	·offset(SB), AX
	ADDQ	AX, 0(SI)
done:
	XORL	AX, AX
	RET

// func entry() uintptr
TEXT ·entry(SB), NOSPLIT, $0-8
	LEAQ	·gettime(SB), AX
	MOVQ	AX, ret+0(FP)
	RET
