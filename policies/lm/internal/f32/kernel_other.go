//go:build !amd64 || purego

package f32

import "unsafe"

const avx2 = false

func kernel32(*float32, int, *float32, int, int, *float32, int, int, bool)  { panic("no assembly") }
func kernel16(*float32, int, *float32, int, int, *uint16, int, int, bool)   { panic("no assembly") }
func rowPanels(*float32, *float32, *[]float32, int, int, bool)              { panic("no assembly") }
func widenSteps(*float32, *uint16, int)                                     { panic("no assembly") }
func prefetch(unsafe.Pointer, int)                                          { panic("no assembly") }
func transpose16(*float32, *float32, int, int)                              { panic("no assembly") }
func copy8(*float32, int, *float32, int, int)                               { panic("no assembly") }
func dot([]float32, []float32) float32                                      { panic("no assembly") }
func axpy([]float32, float32, []float32)                                    { panic("no assembly") }
func scale([]float32, float32)                                              { panic("no assembly") }
func add([]float32, []float32)                                              { panic("no assembly") }
func mul([]float32, []float32, []float32)                                   { panic("no assembly") }
func mulAdd([]float32, []float32, []float32)                                { panic("no assembly") }
func sum([]float32) float64                                                 { panic("no assembly") }
func sumSquares([]float32) float64                                          { panic("no assembly") }
func dot3([]float32, []float32, []float32) float64                          { panic("no assembly") }
func maximum([]float32) float32                                             { panic("no assembly") }
func expSum([]float32, []float32, float32) float64                          { panic("no assembly") }
func silu([]float32, []float32)                                             { panic("no assembly") }
func siluBack([]float32, []float32, []float32)                              { panic("no assembly") }
func norm([]float32, []float32, []float32, float32)                         { panic("no assembly") }
func normBack([]float32, []float32, []float32, []float32, float32, float32) { panic("no assembly") }
func normGrad([]float32, []float32, []float32, float32)                     { panic("no assembly") }
func adam([]float32, []float32, []float32, []float32, *scalars)             { panic("no assembly") }
func widenEights([]float32, []uint16)                                       { panic("no assembly") }
func roundEights([]uint16, []float32)                                       { panic("no assembly") }
