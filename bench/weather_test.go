package bench

import "testing"

func TestWeather(t *testing.T) { reproduce(t, "Weather-v0") }

func BenchmarkWeather(b *testing.B) { speed(b, "Weather-v0") }
